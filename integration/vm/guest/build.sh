#!/bin/bash
# Builds a virtual machine in the current directory from Debian packages:
#   vmlinux, initrd.gz, modules/RELEASE (with siw, RTRS and RNBD in updates)
# usage: build.sh RELEASE SOURCE, as in 6.1.0-56-amd64 linux-source-6.1
set -euo pipefail
release=$1 source=$2
guest=$(cd "$(dirname "$0")" && pwd)
version=$(dpkg-query -W -f '${Version}' "linux-headers-$release")

echo "the kernel, unpacked and not installed"
download() { apt-get -q -o APT::Sandbox::User=root -o Acquire::Retries=2 download "linux-image-$release=$version"; }
download || { apt-get -q update && download; } || {
	echo "linux-image-$release $version can't be fetched. Is there a network, and a package mirror in /etc/apt? If the mirror has a newer kernel only: apt-get install linux-headers-amd64" >&2
	exit 75 # EX_TEMPFAIL: vm.ErrNoPackage
}
dpkg-deb -x linux-image-*.deb image
# The ELF image inside the compressed one boots some seconds faster.
offset=$(LC_ALL=C grep -obUaP '\xfd7zXZ\x00' "image/boot/vmlinuz-$release" | head -n 1 | cut -d: -f1)
tail -c "+$((offset + 1))" "image/boot/vmlinuz-$release" | xz -dc >vmlinux 2>/dev/null || true
[ "$(head -c 4 vmlinux | tail -c 3)" = ELF ] || { echo "there is no ELF image in vmlinuz-$release" >&2; exit 1; }
mkdir modules
mv "image/lib/modules/$release" modules/

echo "siw, which Debian's kernel lacks; some of its constants become module parameters"
drivers=("$source"/drivers/{infiniband/sw/siw,infiniband/ulp/rtrs,block/rnbd})
tar -xJf "/usr/src/$source.tar.xz" "${drivers[@]}"
mv "${drivers[@]}" .
flags='mpa_crc_required|mpa_crc_strict|peer_to_peer'
sed -i -E "s/^extern const bool ($flags);/extern bool \\1;/" siw/siw.h
sed -i -E "s/^const bool ($flags)( = true)?;/bool \\1\\2;\nmodule_param(\\1, bool, 0644);/; s/^u_char mpa_version = .*/&\nmodule_param(mpa_version, byte, 0644);/" siw/siw_main.c
sed -i -E "s/^static __be16 rtr_type = .*/static unsigned short rtr_bits = 0xc000;\nmodule_param_named(rtr_type, rtr_bits, ushort, 0644);\n#define rtr_type cpu_to_be16(rtr_bits)/" siw/siw_cm.c
kbuild() { dir=$1; shift; make -s -C "/usr/src/linux-headers-$release" M="$PWD/$dir" "$@" modules -j"$(nproc)"; }
kbuild siw CONFIG_RDMA_SIW=m

echo "RTRS and RNBD, which it lacks as well"
kbuild rtrs CONFIG_INFINIBAND_RTRS=m CONFIG_INFINIBAND_RTRS_CLIENT=m CONFIG_INFINIBAND_RTRS_SERVER=m
kbuild rnbd CONFIG_BLK_DEV_RNBD_CLIENT=m CONFIG_BLK_DEV_RNBD_SERVER=m KCFLAGS="-I$PWD/rtrs" KBUILD_EXTRA_SYMBOLS="$PWD/rtrs/Module.symvers"

mkdir "modules/$release/updates"
strip --strip-debug {siw,rtrs,rnbd}/*.ko
mv {siw,rtrs,rnbd}/*.ko "modules/$release/updates/"
mkdir -p base/lib
ln -s "$PWD/modules" base/lib/modules
depmod -b base "$release"

echo "an initial file system that can mount the host's"
mkdir -p root/bin root/proc root/sys root/dev root/mod root/ro root/rw root/root
cp /bin/busybox root/bin/
cp "$guest/init.sh" root/init
cp "$guest/stage2.sh" root/stage2
for m in 9p virtio_pci 9pnet_virtio overlay; do
	modprobe -d base -S "$release" --show-depends "$m"
done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r file; do
	name=$(basename "$file")
	cp "$file" "root/mod/$name"
	strip --strip-debug "root/mod/$name"
	echo "$name" >>root/mod/order
done
(cd root && find . | cpio -o -H newc --quiet | gzip -1) >initrd.gz
rm -rf image linux-image-*.deb siw rtrs rnbd "$source" base root
