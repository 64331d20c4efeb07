package ipsec

import "golang.org/x/sys/unix"

// kick makes TCP ask its peer at once what has arrived, instead of when its
// retransmission timer is due, which is 0.2 s at least and has doubled with every
// packet that met the guard. TCP_REPAIR_OFF on a socket that is not in repair
// sends a window probe and does nothing else but clear SO_REUSEADDR, which is
// set again. It needs CAP_NET_ADMIN; without it TCP's own timer does the work.
func kick(c any) {
	control(c, func(fd int) {
		reuse, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR)
		if err != nil {
			return
		}
		if unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0) == nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, reuse)
		}
	})
}
