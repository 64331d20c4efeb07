package flow

import (
	"time"

	"golang.org/x/sys/unix"
)

// Kick makes TCP ask its peer at once what has arrived, instead of when its
// retransmission timer is due, which is 0.2 s at least and has doubled with every
// packet that met the guard. TCP_REPAIR_OFF on a socket that is not in repair
// sends a window probe and does nothing else but clear SO_REUSEADDR, which is
// set again. It needs CAP_NET_ADMIN; without it TCP's own timer does the work.
//
// stuck reports that TCP has repeated the flow's data and had no answer yet. An
// SCTP association does all that by itself.
func (w *Watch) Kick() (stuck bool) {
	if a, ok := w.Monitored.(association); ok {
		return a.Kick()
	}
	return control(w.Monitored, func(fd int) bool {
		reuse, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR)
		if err != nil {
			return false
		}
		if unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0) == nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, reuse)
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err == nil && info.Retransmits > 0
	})
}

// tcpRTOMaxMS is TCP_RTO_MAX_MS of Linux 6.15, which package unix lacks.
const tcpRTOMaxMS = 44

// shortRTO is the longest retransmission timeout of a flow without an SA: the least that
// Linux takes.
const shortRTO = time.Second

// ShortenRTO keeps the retransmission timeout, which doubles with every packet that meets
// the guard or a peer without the SA, at a second: a loss for want of an SA is no sign of
// congestion. Kernels that cannot do that are left alone.
func (w *Watch) ShortenRTO() {
	if w.rtoMax > 0 {
		return
	}
	if a, ok := w.Monitored.(association); ok {
		a.LimitRTO(shortRTO)
		w.rtoMax = int(shortRTO / time.Millisecond)
		return
	}
	w.rtoMax = control(w.Monitored, func(fd int) int {
		ms, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMaxMS)
		if short := int(shortRTO / time.Millisecond); err == nil && ms > short && unix.SetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMaxMS, short) == nil {
			return ms
		}
		return 0
	})
}

// RestoreRTO takes ShortenRTO back.
func (w *Watch) RestoreRTO() {
	if w.rtoMax == 0 {
		return
	}
	if a, ok := w.Monitored.(association); ok {
		a.LimitRTO(0)
	} else {
		ms := w.rtoMax
		control(w.Monitored, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMaxMS, ms) })
	}
	w.rtoMax = 0
}
