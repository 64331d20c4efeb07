# The tests make their hosts themselves, with the kernel's SCTP between them, most
# of it inside the kernel's ESP, and netem where the wire is to be a bad one.

# All at once and beforehand: loaded one by one for the first SA they would make
# it wait for seconds.
modprobe -a sctp sctp_diag sch_netem veth bridge tun nf_tables xfrm_user af_key esp4 esp6 xfrm4_tunnel xfrm6_tunnel \
	authenc authencesn seqiv echainiv hmac cbc ctr gcm sha1_generic sha256_generic aesni_intel ghash_clmulni_intel \
	loop ext4 2>/run/modprobe.err
for m in sctp sch_netem xfrm_user esp4 esp6; do
	[ -d /sys/module/$m ] || fail "the module $m does not load: $(cat /run/modprobe.err)"
done
ip link set lo up
