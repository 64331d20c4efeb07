package main

// debPackage is a Debian package and the files by which its presence is
// recognised: all of them must exist. A name without a slash is looked up in
// PATH and the sbin directories; one with a slash is a glob.
type debPackage struct {
	name  string
	files []string
	why   string
}

const plugins = "/usr/lib/ipsec/plugins/libstrongswan-"

var (
	cc         = debPackage{"gcc", []string{"gcc"}, "a C compiler, for the race detector and for soft-iWARP"}
	libc       = debPackage{"libc6-dev", []string{"/usr/include/stdlib.h"}, "the race detector needs the C library's headers"}
	iproute    = debPackage{"iproute2", []string{"ip"}, "network namespaces and veth pairs"}
	charon     = debPackage{"strongswan-charon", []string{"/usr/lib/ipsec/charon"}, "the IKE daemon"}
	swanctl    = debPackage{"strongswan-swanctl", []string{plugins + "vici.so", "swanctl"}, "strongSwan's control interface (VICI)"}
	swanStd    = debPackage{"libstrongswan-standard-plugins", []string{plugins + "gcm.so", plugins + "openssl.so"}, "AES-GCM and ECP groups for IKE"}
	swanExtra  = debPackage{"libstrongswan-extra-plugins", []string{plugins + "curve25519.so", plugins + "ctr.so"}, "more IKE and ESP algorithms"}
	charonPlug = debPackage{"libcharon-extra-plugins", []string{plugins + "kernel-libipsec.so"}, "ESP in user space, where the kernel has none"}
	tcpdump    = debPackage{"tcpdump", []string{"tcpdump"}, "captures what is on the wire"}
	tshark     = debPackage{"tshark", []string{"tshark"}, "an independent dissector of what is on the wire"}
	e2fsprogs  = debPackage{"e2fsprogs", []string{"mke2fs", "e2fsck"}, "makes and checks ext4 images"}
	xfsprogs   = debPackage{"xfsprogs", []string{"mkfs.xfs"}, "makes the file systems of pools"}
	lvm2       = debPackage{"lvm2", []string{"lvcreate"}, "makes thin volumes"}
	thinTools  = debPackage{"thin-provisioning-tools", []string{"thin_check"}, "checks their pools"}
	btrfsProgs = debPackage{"btrfs-progs", []string{"mkfs.btrfs"}, "makes the file systems of pools"}
	fio        = debPackage{"fio", []string{"fio"}, "load and verification over NBD"}
	faketime   = debPackage{"faketime", []string{"/usr/lib/*/faketime/libfaketimeMT.so.1"}, "a clock for strongSwan that tests can move"}
	libnbd     = debPackage{"libnbd-bin", []string{"nbdcopy", "nbdinfo"}, "an independent NBD client"}
	file       = debPackage{"file", []string{"file"}, "nbdinfo runs it, and writes broken JSON without"}
	qemuUtils  = debPackage{"qemu-utils", []string{"qemu-img", "qemu-io", "qemu-nbd"}, "an independent NBD client and server"}
	libiscsi   = debPackage{"libiscsi-bin", []string{"iscsi-ls", "iscsi-inq", "iscsi-test-cu"}, "an independent iSCSI initiator, and its suite"}
	openISCSI  = debPackage{"open-iscsi", []string{"iscsiadm", "iscsid"}, "has the kernel of the virtual machine log in to iSCSI targets"}
	nvmeCLI    = debPackage{"nvme-cli", []string{"nvme"}, "has the kernel of the virtual machine attach our NVMe namespace"}
	multipath  = debPackage{"multipath-tools", []string{"multipathd", "mpathpersist"}, "takes two ways to our iSCSI target for one disk"}
	sg3        = debPackage{"sg3-utils", []string{"sg_persist", "sg_xcopy"}, "SCSI commands by hand, to our iSCSI target"}
	qemuBlock  = debPackage{"qemu-block-extra", []string{"/usr/lib/*/qemu/block-iscsi.so"}, "QEMU's iSCSI initiator"}
	qemu       = debPackage{"qemu-system-x86", []string{"qemu-system-x86_64"}, "the virtual machine"}
	busybox    = debPackage{"busybox-static", []string{"/usr/share/doc/busybox-static", "/bin/busybox"}, "the virtual machine's first steps"}
	kmod       = debPackage{"kmod", []string{"modprobe", "depmod"}, "the virtual machine's kernel modules"}
	cpio       = debPackage{"cpio", []string{"cpio"}, "packs the virtual machine's first file system"}
	xz         = debPackage{"xz-utils", []string{"xz"}, "unpacks kernel and sources"}
	gnuMake    = debPackage{"make", []string{"make"}, "builds soft-iWARP"}
	headers    = debPackage{"linux-headers-amd64", []string{"/usr/src/linux-headers-6.1.*-amd64"}, "soft-iWARP is built against them"}
	source     = debPackage{"linux-source-6.1", []string{"/usr/src/linux-source-6.1.tar.xz"}, "the source of soft-iWARP, which Debian's kernel lacks"}
	rdmacm     = debPackage{"rdmacm-utils", []string{"rping", "rcopy"}, "programs that know RDMA: rping, rcopy and others"}
	ibverbs    = debPackage{"ibverbs-providers", []string{"/usr/lib/*/libibverbs/libsiw-rdmav*.so"}, "soft-iWARP's part in user space"}
	ibvUtils   = debPackage{"ibverbs-utils", []string{"ibv_devinfo", "ibv_devices"}, "shows a program's RDMA device"}
	perftest   = debPackage{"perftest", []string{"ib_write_bw", "ib_write_lat"}, "measures soft-iWARP, the rival in the virtual machine, and runs on IronWarp"}
	ibverbsDev = debPackage{"libibverbs-dev", []string{"/usr/include/infiniband/verbs.h"}, "the program at the peer's end of the conformance suite; libibverbs.so.1 of `ironwarp run`"}
	rdmacmDev  = debPackage{"librdmacm-dev", []string{"/usr/include/rdma/rdma_cma.h"}, "the program at the peer's end of the conformance suite; libibverbs.so.1 of `ironwarp run`"}
	bootstrap  = debPackage{"debootstrap", []string{"debootstrap"}, "makes the machines with systemd"}
	netbase    = debPackage{"netbase", []string{"/etc/services"}, "strongSwan names ports in selectors by it"}
	zsh        = debPackage{"zsh", []string{"zsh"}, "completes what peers have named"}
	fish       = debPackage{"fish", []string{"fish"}, "completes what peers have named"}
	tgt        = debPackage{"tgt", []string{"tgtd", "tgtadm"}, "the rival of the iSCSI rows, and a target that our tester judges"}
	checkpol   = debPackage{"checkpolicy", []string{"checkmodule"}, "compiles the policies for partitions that ours has to decide like"}
	semodule   = debPackage{"semodule-utils", []string{"semodule_package"}, "packs what checkmodule has compiled"}
	polcore    = debPackage{"policycoreutils", []string{"/usr/libexec/selinux/hll/pp"}, "translates that for secilc"}
	secilc     = debPackage{"secilc", []string{"secilc"}, "compiles policies for the kernel's SELinux"}
	setools    = debPackage{"setools", []string{"sesearch"}, "says what a compiled policy allows"}
	opensm     = debPackage{"opensm", []string{"opensm"}, "a subnet manager of others, the oracle of ours"}
	ibsim      = debPackage{"ibsim-utils", []string{"ibsim"}, "the network that opensm manages"}
	umad2sim   = debPackage{"libumad2sim0", []string{"/usr/lib/*/umad2sim/libumad2sim.so"}, "has InfiniBand's programs reach that network, or our directory, without a device"}
	ibDiags    = debPackage{"infiniband-diags", []string{"saquery", "sminfo", "smpquery"}, "InfiniBand's own programs, to ask our directory and agents"}
	chromium   = debPackage{"chromium", []string{"chromium"}, "a browser, for the page of `ironwarp web`"}
	lintian    = debPackage{"lintian", []string{"lintian"}, "Debian's own checks of our packages"}
	rpm        = debPackage{"rpm", []string{"rpm"}, "reads our packages for other distributions"}
	reprepro   = debPackage{"reprepro", []string{"reprepro"}, "lays out the apt repository of a release"}
	skopeo     = debPackage{"skopeo", []string{"skopeo"}, "reads the container image of a release"}
	nbdkit     = debPackage{"nbdkit", []string{"nbdkit", "/usr/lib/*/nbdkit/plugins/nbdkit-file-plugin.so"}, "the rival of the fio rows"}
)

// sets names what each make target needs.
var sets = map[string][]debPackage{
	"test":     {cc, libc, iproute, charon, swanctl, swanStd, swanExtra, charonPlug, tcpdump, tshark, e2fsprogs, fio, faketime, libnbd, file, qemuUtils, libiscsi, qemuBlock, bootstrap, netbase, zsh, fish, checkpol, semodule, polcore, secilc, setools, chromium, lintian, rpm, reprepro, skopeo, xfsprogs, btrfsProgs},
	"demo":     {iproute, charon, swanctl, swanStd, swanExtra, charonPlug, tcpdump, e2fsprogs, fio, libnbd, cc, libc, ibverbsDev, rdmacmDev, rdmacm, perftest},
	"newcomer": {iproute, charon, swanctl, swanStd, swanExtra, charonPlug, tcpdump, bootstrap},
	"bench":    {charon, swanctl, swanStd, swanExtra, charonPlug, tcpdump, fio, qemuUtils, qemuBlock, nbdkit, tgt, cc, gnuMake, headers, source, xz, kmod, cpio, busybox, qemu, iproute, ibverbs, ibverbsDev, rdmacmDev, perftest, openISCSI, libiscsi},
	"interop": {cc, libc, gnuMake, headers, source, xz, kmod, cpio, busybox, qemu, iproute, tcpdump, rdmacm, ibverbs, ibverbsDev, rdmacmDev, ibvUtils, perftest,
		charon, swanctl, swanStd, swanExtra, e2fsprogs, fio, libnbd, file, bootstrap, openISCSI, nvmeCLI, sg3, multipath, libiscsi, tgt, checkpol, semodule, polcore, secilc, setools, opensm, ibsim, umad2sim, ibDiags, xfsprogs, lvm2, thinTools},
}
