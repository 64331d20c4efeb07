// Package device puts disks behind block devices of the kernel's nbd driver: it sets them
// up over generic netlink, serves the driver on socket pairs, and takes a device over that an
// earlier life of the daemon has set up, whose I/O has waited meanwhile.
package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// Config is a device's.
type Config struct {
	Name      string // of its link below /dev/disk/by-ironwarp; no other device has it
	Size      uint64 // bytes
	BlockSize uint32 // bytes, a power of two; the kernel's is at least 512
	Flags     uint16 // transmission flags of NBD
	MultiConn bool   // it may have several connections, since a flush on one covers all writes completed before
	// Serve serves the driver on a connection, and closes it. It returns when the driver has
	// closed it, or ctx ends.
	Serve func(ctx context.Context, nc net.Conn) error
	// Lost hears, once, why the kernel does not have the device any more.
	Lost func(*api.Error)
	Log  *slog.Logger
}

// Device is a block device of the kernel.
//
//	          CONNECT, or found
//	(nothing) ─────────────────▶ connected ──────────────────────────▶ lost
//	                              │  ▲      another program ends it
//	   a connection ends: it timed│  │RECONFIGURE, with a new one in its place
//	   out, or a daemon was killed▼  │
//	                            waiting: the driver holds its I/O back
type Device struct {
	drv   *Driver
	cfg   Config
	index uint32

	ending atomic.Bool
	lost   sync.Once
	wg     sync.WaitGroup
}

// Open has the kernel set up a device, or takes over the one of that name. It serves it until
// ctx ends; the device stays until Remove, and its I/O waits for the next Open. Wait waits
// until nothing is served any more. It fails with an *api.Error.
func (d *Driver) Open(ctx context.Context, cfg Config) (*Device, error) {
	v := &Device{drv: d, cfg: cfg}
	cfg.BlockSize = max(cfg.BlockSize, 512)
	index, found := d.find(backendOf(cfg.Name))
	var first []net.Conn
	n := 1
	if found {
		v.index, n = index, d.connections(index)
		if size := d.size(index); size != cfg.Size&^511 {
			if err := v.Resize(cfg.Size); err != nil {
				return nil, err
			}
		}
		first = make([]net.Conn, n)
	} else {
		if cfg.MultiConn {
			n = min(runtime.NumCPU(), maxConnections)
		}
		var err error
		if first, err = v.connect(n); err != nil {
			return nil, err
		}
	}
	for _, nc := range first {
		v.wg.Go(func() { v.keep(ctx, nc) })
	}
	if err := d.awaitLink(ctx, cfg.Name, v.index); err != nil {
		cfg.Log.Warn("cannot make the link of a device", "device", v.Path(), "link", v.Link(), "error", err)
	}
	return v, nil
}

// connect has the kernel set the device up, with n connections.
func (v *Device) connect(n int) (ours []net.Conn, err error) {
	r := request{size: v.cfg.Size, blockSize: uint64(max(v.cfg.BlockSize, 512)), timeout: seconds(requestTime), dead: seconds(deadTime),
		flags: uint64(v.cfg.Flags), backend: backendOf(v.cfg.Name)}
	what := "set up a block device for " + v.cfg.Name
	err = func() error {
		for range n {
			nc, fd, err := socketPair()
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			ours, r.sockets = append(ours, nc), append(r.sockets, uint32(fd))
		}
		answers, err := v.drv.ways.Exchange(cmdConnect, r.append(nil))
		if err != nil {
			return err
		}
		if len(answers) == 0 {
			return errMalformed
		}
		v.index, err = parseConnected(answers[0])
		return err
	}()
	if err == nil && v.drv.attribute(v.index, "backend") != r.backend {
		err = errors.Join(errTooOld, v.disconnect())
	}
	if err != nil {
		for _, nc := range ours {
			nc.Close()
		}
		return nil, v.drv.failure(what, err)
	}
	return ours, nil
}

// errTooOld: nobody could find the device again.
var errTooOld = errors.New("this kernel does not keep which disk a device belongs to: it takes Linux 5.14 or later")

func (v *Device) disconnect() error {
	_, err := v.drv.ways.Exchange(cmdDisconnect, (&request{index: &v.index}).append(nil))
	return err
}

func seconds(d time.Duration) uint64 { return uint64(d / time.Second) }

// socketPair returns the two ends of a connection, the kernel's as a descriptor.
func socketPair() (ours net.Conn, kernels int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("make a socket pair: %w", err)
	}
	for _, fd := range fds {
		// More than the limit takes CAP_NET_ADMIN; without, it is only slower.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer)
		}
	}
	f := os.NewFile(uintptr(fds[0]), "nbd")
	defer f.Close()
	if ours, err = net.FileConn(f); err != nil {
		return nil, -1, errors.Join(err, unix.Close(fds[1]))
	}
	return ours, fds[1], nil
}

// keep serves one of the device's connections, and gives the kernel another whenever it
// ends. nc is the first, nil: the kernel has none yet.
func (v *Device) keep(ctx context.Context, nc net.Conn) {
	pause := retryMin
	for ctx.Err() == nil {
		begin := time.Now()
		var err error
		if nc == nil {
			if nc, err = v.reconnect(); err != nil {
				v.cfg.Log.Warn("cannot give the kernel a connection of a device", "device", v.Path(), "error", err)
			}
		}
		if err == nil {
			err = v.cfg.Serve(ctx, nc)
		}
		nc = nil
		switch {
		case ctx.Err() != nil || v.ending.Load():
			return
		case v.isLost():
			v.lost.Do(func() {
				v.cfg.Lost(&api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the kernel has ended %s: another program has disconnected it", v.Path()),
					Fix: "detach the disk and attach it again"})
			})
			return
		}
		// The kernel drops a connection at once where it has not seen yet that the one before
		// has ended.
		if time.Since(begin) > retryMax {
			pause = retryMin
			v.cfg.Log.Info("the kernel has given up a connection of a device, and gets another", "device", v.Path(), "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, retryMax)
	}
}

// reconnect gives the kernel a connection in place of one that has ended.
func (v *Device) reconnect() (net.Conn, error) {
	nc, fd, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := v.reconfigure(request{sockets: []uint32{uint32(fd)}}); err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	return nc, nil
}

func (v *Device) reconfigure(r request) error {
	r.index, r.backend = &v.index, backendOf(v.cfg.Name)
	_, err := v.drv.ways.Exchange(cmdReconfigure, r.append(nil))
	return err
}

// isLost reports that the kernel does not have the device any more.
func (v *Device) isLost() bool {
	index, found := v.drv.find(backendOf(v.cfg.Name))
	return !found || index != v.index
}

// Resize tells the kernel the size of the disk in bytes. It fails with an *api.Error.
func (v *Device) Resize(size uint64) error {
	if err := v.reconfigure(request{size: size}); err != nil {
		return v.drv.failure("resize "+v.Path(), err)
	}
	return nil
}

// End has what ends the device's connections from now on end it for good.
func (v *Device) End() { v.ending.Store(true) }

// Wait waits until nothing is served any more.
func (v *Device) Wait() { v.wg.Wait() }

// Path is the device's file.
func (v *Device) Path() string { return v.drv.path(v.index) }

// Link is the link to it, which stays the same when the kernel's name for it does not.
func (v *Device) Link() string { return v.drv.link(v.cfg.Name) }
