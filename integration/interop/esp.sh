# The tests make their hosts themselves, with the kernel's ESP between them.

# All at once and beforehand: loaded one by one for the first SA they would make
# it wait for seconds.
modprobe -a veth bridge tun nf_tables xfrm_user af_key esp4 esp6 xfrm4_tunnel xfrm6_tunnel \
	authenc authencesn seqiv echainiv hmac cbc ctr gcm ccm xcbc cmac ecb des_generic \
	sha1_generic sha256_generic sha512_generic chacha20poly1305 aesni_intel ghash_clmulni_intel \
	chacha_generic chacha_x86_64 poly1305_generic poly1305_x86_64 siw rdma_ucm ib_uverbs sctp 2>/run/modprobe.err
for m in xfrm_user esp4 esp6 siw sctp; do
	[ -d /sys/module/$m ] || fail "the module $m does not load: $(cat /run/modprobe.err)"
done

# The first state with ChaCha20-Poly1305 has the kernel put it together and test it, for
# longer than strongSwan waits for the peer if the machine is busy.
ip xfrm state add src 127.0.0.9 dst 127.0.0.9 proto esp spi 0x1000 mode transport \
	aead 'rfc7539esp(chacha20,poly1305)' 0x$(printf '61%.0s' $(seq 36)) 128 || fail "the kernel has no ChaCha20-Poly1305"
ip xfrm state flush
