# Hosts that the tests make themselves, with the kernel's ESP between them.
set -u
cd /
out=/mnt/out
fail() { echo "$*"; dmesg | tail -n 20; exit 1; }

# All at once and beforehand: loaded one by one for the first SA they would make
# it wait for seconds.
modprobe -a veth bridge tun xfrm_user af_key esp4 esp6 xfrm4_tunnel xfrm6_tunnel \
	authenc authencesn seqiv echainiv hmac cbc ctr gcm ccm xcbc cmac ecb des_generic \
	sha1_generic sha256_generic sha512_generic chacha20poly1305 aesni_intel ghash_clmulni_intel \
	siw rdma_ucm ib_uverbs 2>/run/modprobe.err
for m in xfrm_user esp4 esp6 siw; do
	[ -d /sys/module/$m ] || fail "the module $m does not load: $(cat /run/modprobe.err)"
done
# A kernel that has hurt itself is of no more use.
echo 1 >/proc/sys/kernel/panic_on_oops

# run NAME SECONDS COMMAND...
run() {
	local name=$1 seconds=$2
	shift 2
	timeout -k 5 "$seconds" "$@" >$out/$name.log 2>&1 </dev/null
	echo $? >$out/$name.status
	echo "$name $(cut -d' ' -f1 /proc/uptime)"
}

# again NAME SECONDS COMMAND... gives up to three tests of a program that have
# failed a second try, with the machine for themselves.
again() {
	local name=$1 seconds=$2 failed
	shift 2
	[ "$(cat $out/$name.status)" = 1 ] || return 0
	failed=$(grep -oE '^--- FAIL: [A-Za-z0-9_]+' $out/$name.log | cut -d' ' -f3 | sort -u)
	[ -n "$failed" ] && [ "$(echo "$failed" | wc -l)" -le 3 ] || return 0
	run $name-again "$seconds" "$@" -test.run "^($(echo "$failed" | paste -sd'|'))\$"
}

finish() {
	wait
	dmesg >$out/dmesg
	exit 0
}
