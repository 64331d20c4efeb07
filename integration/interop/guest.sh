# Two hosts, A with siw and B without any RDMA of the kernel, on one wire.
set -u
cd /
out=/mnt/out
fail() { echo "$*"; dmesg | tail -n 20; exit 1; }

# A kernel that has hurt itself is of no more use.
echo 1 >/proc/sys/kernel/panic_on_oops
modprobe -a veth siw rdma_ucm ib_uverbs || fail "the modules do not load"
ip netns add A && ip netns add B
ip link add va type veth peer name vb
ip link set va netns A
ip link set vb netns B
ip -n A addr add 10.9.0.1/24 dev va
ip -n B addr add 10.9.0.2/24 dev vb
ip -n A addr add fd09::1/64 dev va nodad
ip -n B addr add fd09::2/64 dev vb nodad
for n in A B; do ip -n $n link set lo up; done
ip -n A link set va up
ip -n B link set vb up
ip netns exec A rdma link add siwa type siw netdev va || fail "there is no siw"

ip netns exec B tcpdump -i vb -Z root -U --immediate-mode -B 65536 -s $capture_length -w /run/wire.pcap tcp 2>/run/tcpdump.err &
tcpdump=$!
for i in $(seq 100); do
	[ -s /run/wire.pcap ] && break
	sleep 0.2
done
[ -s /run/wire.pcap ] || fail "tcpdump does not start: $(cat /run/tcpdump.err)"

# listening NAMESPACE PORT waits until something listens, in user space or the
# kernel.
listening() {
	local i hex
	hex=$(printf ':%04X [0-9A-F:]* 0A ' "$2")
	for i in $(seq 100); do
		ip netns exec "$1" cat /proc/net/tcp /proc/net/tcp6 | grep -q "$hex" && return 0
		sleep 0.2
	done
	return 1
}

# run_case SERVER-NAMESPACE CLIENT-NAMESPACE NAME PORT CRC PEER-TO-PEER REVISION,
# with the commands in the arrays server and client.
run_case() {
	local name=$3 pid
	echo "$5" >/sys/module/siw/parameters/mpa_crc_required
	echo "$6" >/sys/module/siw/parameters/peer_to_peer
	echo "$7" >/sys/module/siw/parameters/mpa_version
	echo "${server[*]}" >$out/$name.server.cmd
	echo "${client[*]}" >$out/$name.client.cmd
	timeout -k 2 120 ip netns exec "$1" "${server[@]}" >/run/server.out 2>/run/server.err &
	pid=$!
	if listening "$1" "$4"; then
		timeout -k 2 60 ip netns exec "$2" "${client[@]}" >/run/client.out 2>/run/client.err
		echo $? >$out/$name.client.status
	else
		echo "nothing listens on port $4" >/run/client.err
		: >/run/client.out
	fi
	# A server that has lost its client ends by itself; one that has not is stuck.
	for i in $(seq 150); do
		kill -0 $pid 2>/dev/null || break
		sleep 0.2
	done
	kill $pid 2>/dev/null
	wait $pid
	echo $? >$out/$name.server.status
	for f in server.out server.err client.out client.err; do cp /run/$f $out/$name.$f; done
	echo "$name $(cut -d' ' -f1 /proc/uptime)"
}
we_serve() { server=("${ours[@]}") client=("${siw[@]}"); run_case B A "$@"; }
siw_serves() { server=("${siw[@]}") client=("${ours[@]}"); run_case A B "$@"; }

# suite SECONDS COMMAND...
suite() {
	local seconds=$1
	shift
	ip netns exec B timeout -s QUIT -k 20 "$seconds" "$@" >$out/suite.log 2>&1 </dev/null
	echo $? >$out/suite.status
}

finish() {
	kill $tcpdump
	wait $tcpdump
	cp /run/wire.pcap $out/
	dmesg >$out/dmesg
	exit 0
}

