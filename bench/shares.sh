#!/bin/sh
# Where the time of a row goes, as shares of the samples of CPU profiles.
#
#	make bench ROWS='^Read 4 KiB, depth 32' ARGS='-cpuprofile /tmp/p'
#	bench/shares.sh /tmp/p /tmp/p.rdma      # both ends of ours
#
# The profile of the measuring end holds whatever it measured; -only among the
# ARGS has it run one contender alone.
[ $# -gt 0 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
for f; do go tool pprof -traces "$f" || exit 1; done 2>/dev/null | awk '
function done() {
	if (ms == 0) return
	if (leaf ~ /crc32c?\./ || leaf ~ /castagnoli/) k = "CRC"
	else if (leaf ~ /^runtime\.mem(move|clr)/) k = "copies in user space"
	else if (stack ~ /runtime\.(futex|epollwait|netpoll|findRunnable|schedule|mcall|park_m|wakep|startm|stopm|usleep|osyield|sysmon|goschedImpl)/ || leaf ~ /^runtime\.(futex|casgstatus|execute|goready|ready)/) k = "scheduling, wake-ups"
	else if (leaf ~ /[sS]yscall6?$/ || leaf ~ /^syscall\./) k = stack ~ /sendmmsg/ || stack ~ /[wW]riter|[wW]rite|[sS]end|Flush/ && stack !~ /Reader\)\.|\.Read[ ;]/ ? "system calls that send" : "system calls that receive"
	else if (leaf ~ /^runtime\./) k = "the rest of the Go runtime"
	else k = "protocol and caller"
	sum[k] += ms; all += ms
	ms = 0
}
function value(s) { n = s + 0; return s ~ /[0-9]ms$/ ? n : s ~ /us$/ ? n / 1000 : s ~ /mins$/ ? n * 60000 : n * 1000 }
/^-+\+-+/ { done(); leaf = stack = ""; open = 1; next }
open && $1 ~ /^[0-9.]+(ms|s|us|mins)$/ { ms = value($1); leaf = $2; stack = $2 " ;"; next }
open && leaf != "" { stack = stack $1 " ;" }
END {
	done()
	for (k in sum) printf "%6.1f %%  %s\n", 100 * sum[k] / all, k | "sort -rn"
}'
