package flow

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/ipsec/lanestate"
)

// idleFor returns for how long a flow has had no data in either direction.
func idleFor(c any) (time.Duration, bool) {
	if i, ok := c.(idler); ok {
		return i.Idle()
	}
	if a, ok := c.(association); ok {
		d := a.Stats().Idle
		return d, d > 0
	}
	info := tcpInfo(c)
	if info == nil {
		return 0, false
	}
	return time.Duration(min(info.Last_data_sent, info.Last_data_recv)) * time.Millisecond, true
}

// bytesOf is what a flow has carried in both directions, keep-alive probes not
// counted.
func bytesOf(c any) (uint64, bool) {
	if i, ok := c.(interface{ Bytes() uint64 }); ok {
		return i.Bytes(), true
	}
	info := tcpInfo(c)
	if info == nil {
		return 0, false
	}
	return info.Bytes_acked + info.Bytes_received, true
}

// isFading is Fading for a TCP connection, which tolerates TCP_USER_TIMEOUT; keep-alive
// obeys that as well.
func isFading(c any) bool {
	if i, ok := c.(idler); ok {
		return i.Fading()
	}
	info := tcpInfo(c)
	if info == nil {
		return false
	}
	patience := control(c, func(fd int) (ms int) {
		ms, _ = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		return ms
	})
	return patience > 0 && int64(info.Last_ack_recv) > int64(patience)/2
}

// tcpCondition is the condition of a TCP connection. A peer that takes no more, its window
// being closed, is no stall.
func tcpCondition(c any) Condition {
	info := tcpInfo(c)
	if info == nil {
		return Condition{Silent: Unheard}
	}
	silent := time.Duration(info.Last_ack_recv) * time.Millisecond
	return Condition{Silent: silent, inVain: info.Unacked > 0 && info.Retransmits > 0, Stalled: info.Unacked > 0 && info.Retransmits >= 3 && silent >= lanestate.StallAfter}
}

func tcpInfo(c any) *unix.TCPInfo {
	return control(c, func(fd int) *unix.TCPInfo {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return nil
		}
		return info
	})
}

// control runs f on the socket of a flow, and returns what it finds; the zero value if the flow has no socket, or one that
// another program keeps locked: then f may still run.
func control[T any](c any, f func(fd int) T) (found T) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return found
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return found
	}
	answer := make(chan T, 1)
	if raw.Control(func(fd uintptr) { answer <- f(int(fd)) }) == nil {
		found = <-answer
	}
	return found
}
