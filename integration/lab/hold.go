package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/nsdo"
)

// Held is what a wire holds back of a host's packets, see Host.Hold.
type Held struct {
	host *Host
	wire int
	sock *os.File
	read chan struct{} // closed when the last one was taken

	mu     sync.Mutex // guards the fields below it
	frames [][]byte
}

// Hold makes a wire hold back, in order, the host's packets that match a tcpdump
// expression, as a network does that delays or loses some packets and not others.
// Release or Drop ends it. It fails with tcpdump(8)'s error for the expression, and
// tc(8)'s for the filter.
func (h *Host) Hold(ctx context.Context, wire int, expression string) (*Held, error) {
	k := &Held{host: h, wire: wire, read: make(chan struct{})}
	if err := k.begin(ctx, expression); err != nil {
		return nil, fmt.Errorf("hold %q on %s: %w", expression, h.name, err)
	}
	go k.take()
	return k, nil
}

func (k *Held) begin(ctx context.Context, expression string) error {
	// tc takes what the program returns as the verdict.
	const shot = 2 // TC_ACT_SHOT
	drop := exec.CommandContext(ctx, "tcpdump", "-y", "EN10MB", "-s", strconv.Itoa(shot), "-ddd", expression)
	out, err := drop.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	filter := make([]unix.SockFilter, len(lines)-1)
	for i, line := range lines[1:] {
		f := &filter[i]
		if _, err := fmt.Sscan(line, &f.Code, &f.Jt, &f.Jf, &f.K); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		if f.Code == unix.BPF_RET && f.K == shot { // the socket gets all of it
			f.K = 1 << 16
		}
	}
	err = nsdo.Do(filepath.Join("/run/netns", k.host.lab.bridge), func() error {
		dev, err := net.InterfaceByName(k.host.switchPort(k.wire))
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		k.sock = os.NewFile(uintptr(fd), "held")
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network byte order
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index})
	})
	if err == nil {
		err = k.tc(ctx, "qdisc", "add", "clsact")
	}
	if err == nil {
		err = k.tc(ctx, "filter", "add", "ingress", "bpf", "direct-action", "bytecode", strings.Join(lines, ","))
	}
	if err != nil && k.sock != nil {
		err = errors.Join(err, k.sock.Close())
	}
	return err
}

// tc runs tc(8) on what the switch gets from the host.
func (k *Held) tc(ctx context.Context, kind, do string, args ...string) error {
	args = append([]string{"-n", k.host.lab.bridge, kind, do, "dev", k.host.switchPort(k.wire)}, args...)
	if out, err := exec.CommandContext(ctx, "tc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("tc %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (k *Held) take() {
	defer close(k.read)
	b := make([]byte, 1<<16)
	for {
		n, err := k.sock.Read(b)
		if err != nil {
			return
		}
		k.mu.Lock()
		k.frames = append(k.frames, append([]byte{}, b[:n]...))
		k.mu.Unlock()
	}
}

// Count is how many packets are held.
func (k *Held) Count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.frames)
}

// Drop discards what is held, and lets pass what comes from now on. It fails with
// tc(8)'s error.
func (k *Held) Drop(ctx context.Context) error {
	err := k.tc(ctx, "qdisc", "del", "clsact")
	err = errors.Join(err, k.sock.Close())
	<-k.read
	return err
}

// Release is Drop, except that the held packets are sent on. It fails with the kernel's
// error as well.
func (k *Held) Release(ctx context.Context) error {
	if err := k.Drop(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.frames {
		const ip, udp = 14, 14 + 20
		if len(f) >= udp+8 && f[ip] == 0x45 && f[ip+9] == unix.IPPROTO_UDP {
			binary.BigEndian.PutUint16(f[udp+6:], 0) // a card would have computed the checksum later
		}
		if err := k.host.transmit(k.wire, f); err != nil {
			return err
		}
	}
	return nil
}
