package ipsec

import (
	"time"

	"golang.org/x/sys/unix"
)

// kick makes TCP ask its peer at once what has arrived, instead of when its
// retransmission timer is due, which is 0.2 s at least and has doubled with every
// packet that met the guard. TCP_REPAIR_OFF on a socket that is not in repair
// sends a window probe and does nothing else but clear SO_REUSEADDR, which is
// set again. It needs CAP_NET_ADMIN; without it TCP's own timer does the work.
//
// stuck tells that TCP has repeated the flow's data and had no answer yet. An
// SCTP association does all that by itself.
func kick(c any) (stuck bool) {
	if a, ok := c.(association); ok {
		return a.Kick()
	}
	control(c, func(fd int) {
		reuse, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR)
		if err != nil {
			return
		}
		if unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0) == nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, reuse)
		}
		if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			stuck = info.Retransmits > 0
		}
	})
	return stuck
}

// tcpRTOMaxMS is TCP_RTO_MAX_MS of Linux 6.15, which package unix lacks.
const tcpRTOMaxMS = 44

// hurry keeps TCP's retransmission timeout, which doubles with every packet that
// meets the guard or a peer without the SA, at a second: a loss for want of an SA
// is no sign of congestion. It returns what calm needs, 0 where the kernel cannot
// do it.
func hurry(c any) (patience int) {
	if a, ok := c.(association); ok {
		a.Hurry(hurryMS * time.Millisecond)
		return hurryMS
	}
	control(c, func(fd int) {
		ms, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMaxMS)
		if err == nil && ms > hurryMS && unix.SetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMaxMS, hurryMS) == nil {
			patience = ms
		}
	})
	return patience
}

// calm takes hurry back.
func calm(c any, patience int) {
	if a, ok := c.(association); ok {
		a.Hurry(0)
		return
	}
	control(c, func(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMaxMS, patience) })
}
