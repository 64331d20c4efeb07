package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
)

// lossyHosts are two hosts in network namespaces on a wire with an MTU of 1500,
// both of which lose packets that come in.
type lossyHosts struct {
	*lab.Lab
	client, server *lab.Host
}

func newLossyHosts(ctx context.Context, loss float64) (_ *lossyHosts, err error) {
	if err := lab.Missing(); err != nil {
		return nil, leftOut(err.Error())
	}
	l, err := lab.New(ctx, lab.Config{Hosts: []string{"client", "server"}, NoCharon: true})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	h := &lossyHosts{l, l.Host("client"), l.Host("server")}
	for _, host := range []*lab.Host{h.client, h.server} {
		if err := lose(host, loss); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// useCubic gives a TCP connection the congestion control that most hosts have.
func useCubic(c net.Conn) error {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt TCP_CONGESTION", unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic"))
	})
	return errors.Join(cerr, err)
}

// on is where a server listens, on any port.
func on(h *lab.Host) string { return netip.AddrPortFrom(h.Addr(), 0).String() }

func inside(h *lab.Host) []string { return []string{"ip", "netns", "exec", h.Namespace()} }

// openLoss measures bulk transfers between hosts that lose packets.
func openLoss(loss float64) func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
	return func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
		h, err := newLossyHosts(ctx, loss)
		if err != nil {
			return nil, nil, err
		}
		return startThem(ctx, b, h.contenders(b), names, h)
	}
}

func (h *lossyHosts) contenders(b *bench) map[string]streamContender {
	server := func(role string) *peer { return newPeer(role, on(h.server), lossTime, inside(h.server)...) }
	tcp, rdma, messages := server(roleTCP), server(roleRDMASCTP), server(roleSCTP)
	pion := newPion(b, on(h.server), tcp, inside(h.server)...)
	return map[string]streamContender{
		"sctp messages":        {messages, inHost(h.client, sctpMessages(messages, sctpMessage))},
		"Writes over sctp-udp": {rdma, inHost(h.client, rdmaStreams(rdma, overSCTP, 1, 64<<10, targetSize))},
		"pion messages":        {pion, pionRun(b, pion, inside(h.client), "write", sctpMessage, 1)},
		"tcp 64 KiB":           {tcp, inHost(h.client, tcpStreams(tcp, 1, 64<<10, useCubic))},
		"tcp 1 MiB":            {tcp, inHost(h.client, tcpStreams(tcp, 1, 1<<20, useCubic))},
	}
}

// startThem starts the servers of the contenders that are named. What is closed
// at the end comes with first, which is closed last.
func startThem(ctx context.Context, b *bench, all map[string]streamContender, names []string, first ...interface{ Close() error }) ([]contender, io.Closer, error) {
	open := closers(first)
	var cs []contender
	for _, n := range names {
		c, ok := all[n]
		err := fmt.Errorf("no contender %q", n)
		if ok {
			err = nil
		}
		if ok && c.server != nil && c.server.cmd == nil {
			if err = c.server.start(ctx, b); err == nil {
				open = append(open, c.server)
			}
		}
		if err != nil {
			return nil, nil, errors.Join(err, open.Close())
		}
		cs = append(cs, contender{n, c.run})
	}
	return cs, open, nil
}
