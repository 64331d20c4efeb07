package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/nsdo"
)

// Delayed is a wire that takes its time, see Host.Delay.
type Delayed struct {
	host    *Host
	wire    int
	sockets [2]*os.File // at the host's end of the switch, and at the way to the rest of it
	over    sync.WaitGroup
}

// Delay makes a wire take so long for each packet from the host, and for each to it. It does what Impair does with
// "delay", without netem. End ends it. It fails with the kernel's error, and with what ip(8) says.
func (h *Host) Delay(ctx context.Context, wire int, each time.Duration) (*Delayed, error) {
	d := &Delayed{host: h, wire: wire}
	if err := d.begin(ctx); err != nil {
		return nil, fmt.Errorf("delay on %s: %w", h.name, errors.Join(err, d.End(ctx)))
	}
	for i := range d.sockets {
		later := make(chan delayedFrame, 1<<14)
		d.over.Go(func() { take(d.sockets[i], later, each) })
		d.over.Go(func() { pass(d.sockets[1-i], later) })
	}
	return d, nil
}

// devices are the ends of the way that frames take from the host's port of the switch to the switch.
func (d *Delayed) devices() (near, far string) {
	port := d.host.switchPort(d.wire)
	return "n" + port, "f" + port
}

func (d *Delayed) ip(ctx context.Context, args ...string) error {
	return ip(ctx, append([]string{"-n", d.host.lab.bridge, "link"}, args...)...)
}

func (d *Delayed) begin(ctx context.Context) error {
	port := d.host.switchPort(d.wire)
	near, far := d.devices()
	if err := d.ip(ctx, "add", near, "mtu", fmt.Sprint(d.host.lab.cfg.MTU), "type", "veth", "peer", "name", far, "mtu", fmt.Sprint(d.host.lab.cfg.MTU)); err != nil {
		return err
	}
	for i, dev := range []string{port, near} {
		var err error
		if d.sockets[i], err = d.host.lab.tap(dev); err != nil {
			return err
		}
	}
	return errors.Join(d.ip(ctx, "set", near, "up"), d.ip(ctx, "set", port, "nomaster"), d.ip(ctx, "set", far, "master", bridgeDev(d.wire), "up"))
}

// tap returns a socket that reads and writes the frames of a device of the switch, each behind a virtio_net_hdr, which
// says what of it the hosts have left to their network cards.
func (l *Lab) tap(dev string) (f *os.File, err error) {
	err = nsdo.Do(filepath.Join("/run/netns", l.bridge), func() error {
		i, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), dev)
		const room = 64 << 20 // bytes; what comes meanwhile is not to be lost
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}))
		if err != nil {
			f.Close()
			f = nil
		}
		return err
	})
	return f, err
}

type delayedFrame struct {
	at time.Time
	b  []byte
}

// take reads frames until the socket is closed.
func take(from *os.File, later chan<- delayedFrame, each time.Duration) {
	defer close(later)
	b := make([]byte, 1<<17)
	for {
		n, err := from.Read(b)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err == nil {
			later <- delayedFrame{time.Now().Add(each), append([]byte(nil), b[:n]...)}
		}
	}
}

// pass sends them on when it is their time. What the device does not take, since it is down, is lost, as on a wire.
func pass(to *os.File, later <-chan delayedFrame) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for f := range later {
		timer.Reset(time.Until(f.at))
		<-timer.C
		_, _ = to.Write(f.b)
	}
}

// End makes the wire as fast as it was; what is under way is lost. It fails with what ip(8) says.
func (d *Delayed) End(ctx context.Context) error {
	near, _ := d.devices()
	err := errors.Join(d.ip(ctx, "del", near), d.ip(ctx, "set", d.host.switchPort(d.wire), "master", bridgeDev(d.wire)))
	for _, s := range d.sockets {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	d.over.Wait()
	return err
}
