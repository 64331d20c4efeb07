# What a machine needs that runs test programs and nothing else.
set -u
cd /
out=/mnt/out
fail() { echo "$*"; dmesg | tail -n 20; exit 1; }

# A kernel that has hurt itself is of no more use.
echo 1 >/proc/sys/kernel/panic_on_oops

# run NAME SECONDS COMMAND...
run() {
	local name=$1 seconds=$2
	shift 2
	timeout -s QUIT -k 20 "$seconds" "$@" >$out/$name.log 2>&1 </dev/null
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
