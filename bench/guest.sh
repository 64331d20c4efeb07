# Two hosts on one wire: A serves, B measures. MODULES is what the kernel needs.
set -u
cd /
fail() { echo "$*"; dmesg | tail -n 20; exit 1; }
modprobe -a veth $MODULES || fail "the modules do not load"
ip netns add A && ip netns add B
ip link add va type veth peer name vb
ip link set va netns A
ip link set vb netns B
ip -n A addr add 10.9.0.1/24 dev va
ip -n B addr add 10.9.0.2/24 dev vb
for n in A B; do ip -n $n link set lo up; done
ip -n A link set va up
ip -n B link set vb up
