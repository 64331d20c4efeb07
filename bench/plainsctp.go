package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"

	lksctp "github.com/ishidawataru/sctp"
	"golang.org/x/sys/unix"
)

// The rival over the kernel's SCTP: a plain one-to-one socket that blocks, with a
// system call for each message, unordered as DDP's are.

const (
	rolePlainSCTP  = "plain-sctp"
	rolePlainLarge = "plain-sctp-large" // with large buffers

	plainLarge = 4 << 20 // of the socket in bytes, as transport/ksctp has them
	countLen   = 8       // of the message that returns how many bytes have been sent
)

// plainSocket is a socket with buffers of so many bytes, 0 for the kernel's own
// size. The caller closes it.
func plainSocket(buffer int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	options := [][3]int{{unix.IPPROTO_SCTP, lksctp.SCTP_NODELAY, 1}}
	if buffer > 0 {
		options = append(options, [3]int{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, buffer}, [3]int{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer})
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			unix.Close(fd)
			return -1, os.NewSyscallError("setsockopt", err)
		}
	}
	return fd, nil
}

func sockaddr4(a netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

// servePlainSCTP counts what comes on each association until it has as much as
// the peer says, and then answers with one byte. It listens until the process
// ends.
func servePlainSCTP(buffer int) func(_ context.Context, listen string) (string, error) {
	return func(_ context.Context, listen string) (string, error) { return plainServe(listen, buffer) }
}

func plainServe(listen string, buffer int) (string, error) {
	at, err := netip.ParseAddrPort(listen)
	if err != nil {
		return "", err
	}
	fd, err := plainSocket(buffer)
	if err != nil {
		return "", err
	}
	bound, err := plainListen(fd, at)
	if err != nil {
		unix.Close(fd)
		return "", err
	}
	go func() {
		for {
			c, _, err := unix.Accept(fd)
			if err != nil {
				return
			}
			go func() {
				defer unix.Close(c)
				_ = plainCount(c) // the client reports what went wrong
			}()
		}
	}()
	return bound.String(), nil
}

func plainListen(fd int, at netip.AddrPort) (netip.AddrPort, error) {
	if err := unix.Bind(fd, sockaddr4(at)); err != nil {
		return at, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, 16); err != nil {
		return at, os.NewSyscallError("listen", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return at, os.NewSyscallError("getsockname", err)
	}
	return netip.AddrPortFrom(at.Addr(), uint16(sa.(*unix.SockaddrInet4).Port)), nil
}

func plainCount(fd int) error {
	got, want := uint64(0), ^uint64(0)
	for buf := make([]byte, 64<<10); got < want; {
		n, _, _, _, err := unix.Recvmsg(fd, buf, nil, 0)
		switch {
		case err != nil:
			return err
		case n == 0:
			return unix.ECONNRESET
		case n == countLen:
			want = binary.BigEndian.Uint64(buf)
		default:
			got += uint64(n)
		}
	}
	_, err := unix.Write(fd, []byte{1})
	return err
}

// plainMessages sends messages of size bytes.
func plainMessages(p *peer, buffer, size int) func(context.Context) (metrics, error) {
	return perMessage(size, func(context.Context) (metrics, error) {
		remote, err := netip.ParseAddrPort(p.addr)
		if err != nil {
			return nil, err
		}
		fd, err := plainSocket(buffer)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, sockaddr4(remote)); err != nil {
			return nil, fmt.Errorf("connect to %v: %w", remote, err)
		}
		return measureStream(p, func(until time.Time) (float64, error) { return plainSend(fd, size, until) })
	})
}

func plainSend(fd, size int, until time.Time) (bytes float64, err error) {
	oob, b := unorderedInfo(), make([]byte, size)
	for time.Now().Before(until) {
		if _, err := unix.SendmsgN(fd, b, oob, nil, 0); err != nil {
			return 0, os.NewSyscallError("sendmsg", err)
		}
		bytes += float64(size)
	}
	if _, err := unix.Write(fd, binary.BigEndian.AppendUint64(nil, uint64(bytes))); err != nil {
		return 0, os.NewSyscallError("write", err)
	}
	n, err := unix.Read(fd, b)
	if err == nil && n != 1 {
		err = fmt.Errorf("an answer of %d bytes", n)
	}
	return bytes, err
}

// unorderedInfo is a control message of type SCTP_SNDINFO (RFC 6458 section
// 5.3.4) that makes a message unordered.
func unorderedInfo() []byte {
	const sndInfo, sndInfoLen, flags, unordered = 2, 16, 2, 1
	b := make([]byte, unix.CmsgSpace(sndInfoLen))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(sndInfoLen)))
	binary.NativeEndian.PutUint32(b[8:], unix.IPPROTO_SCTP)
	binary.NativeEndian.PutUint32(b[12:], sndInfo)
	binary.NativeEndian.PutUint16(b[unix.CmsgLen(0)+flags:], unordered)
	return b
}
