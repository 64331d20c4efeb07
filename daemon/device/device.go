// Package device puts disks behind block devices of the kernel's nbd driver: it sets them
// up over generic netlink, serves the driver on socket pairs, and takes a device over that an
// earlier daemon has set up, whose I/O has waited meanwhile.
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
	"github.com/ironwarp/ironwarp/internal/sockio"
)

// Config is a device's.
type Config struct {
	Name      string // of its link below /dev/disk/by-ironwarp; no other device has it
	Size      uint64 // bytes
	BlockSize uint32 // bytes, a power of two; the kernel's is at least 512
	Flags     uint16 // transmission flags of NBD
	MultiConn bool   // it may have several connections, since a flush on one covers all writes completed before
	// Serve serves the driver on a connection, and closes it. It returns when the driver has
	// closed it and all that it had requested has ended, which may take as long as a peer is
	// away, or ctx ends.
	Serve func(ctx context.Context, nc net.Conn) error
	// Lost is called, once, with the reason why the kernel does not have the device any more.
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
	var first []*connection
	n := 1
	if found {
		v.index, n = index, d.connections(index)
		if size := d.size(index); size != cfg.Size&^511 {
			if err := v.Resize(cfg.Size); err != nil {
				return nil, err
			}
		}
		first = make([]*connection, n)
	} else {
		if cfg.MultiConn {
			n = min(runtime.NumCPU(), maxConnections)
		}
		var err error
		if first, err = v.connect(n); err != nil {
			return nil, err
		}
	}
	for _, c := range first {
		v.wg.Go(func() { v.keepServing(ctx, c) })
	}
	if err := d.awaitLink(ctx, cfg.Name, v.index); err != nil {
		cfg.Log.Warn("cannot make the link of a device", "device", v.Path(), "link", v.Link(), "error", err)
	}
	return v, nil
}

// connect has the kernel set the device up, with n connections.
func (v *Device) connect(n int) (ours []*connection, err error) {
	r := request{size: v.cfg.Size, blockSize: uint64(max(v.cfg.BlockSize, 512)), timeout: wholeSeconds(requestTime), dead: wholeSeconds(deadTime),
		flags: uint64(v.cfg.Flags), backend: backendOf(v.cfg.Name)}
	what := "set up a block device for " + v.cfg.Name
	err = func() error {
		for range n {
			c, fd, err := socketPair()
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			ours, r.sockets = append(ours, c), append(r.sockets, uint32(fd))
		}
		answers, err := v.drv.access.Exchange(cmdConnect, r.append(nil))
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
		for _, c := range ours {
			c.close()
		}
		return nil, v.drv.failure(what, err)
	}
	return ours, nil
}

// errTooOld: nobody could find the device again.
var errTooOld = errors.New("this kernel does not keep which disk a device belongs to: it takes Linux 5.14 or later")

func (v *Device) disconnect() error {
	_, err := v.drv.access.Exchange(cmdDisconnect, (&request{index: &v.index}).append(nil))
	return err
}

func wholeSeconds(d time.Duration) uint64 { return uint64(d / time.Second) }

// connection is a socket pair's end here.
type connection struct {
	net.Conn
	watch int // another descriptor of the socket: whether the driver has closed its end
}

// socketPair returns the two ends of a connection, the kernel's as a descriptor. It fails
// for want of descriptors.
func socketPair() (ours *connection, kernels int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("make a socket pair: %w", err)
	}
	sockio.SetSendBuffer(fds[1], socketBuffer) // package nbd does so with ours
	ours = &connection{}
	f := os.NewFile(uintptr(fds[0]), "nbd")
	defer f.Close()
	if ours.watch, err = unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0); err == nil {
		ours.Conn, err = net.FileConn(f)
	}
	if err != nil {
		ours.close()
		return nil, -1, errors.Join(fmt.Errorf("make a socket pair: %w", err), unix.Close(fds[1]))
	}
	return ours, fds[1], nil
}

func (c *connection) close() {
	if c.Conn != nil {
		c.Conn.Close()
	}
	if c.watch > 0 {
		unix.Close(c.watch)
	}
}

// hungUp reports that the driver has closed its end.
func (c *connection) hungUp() bool {
	p := []unix.PollFd{{Fd: int32(c.watch), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return n > 0 && err == nil
}

// serve serves a connection until the driver has closed it, or ctx ends. What the driver
// had requested on it may not have ended then: Serve sees to it that it ends before anything
// that is requested afterwards begins.
func (v *Device) serve(ctx context.Context, c *connection) error {
	served := make(chan error, 1)
	over := make(chan struct{}) // nobody looks at the connection any more
	v.wg.Go(func() {
		served <- v.cfg.Serve(ctx, c.Conn)
		<-over
		c.close()
	})
	defer close(over)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-served:
			return err
		case <-tick.C:
			if c.hungUp() {
				return nil
			}
		}
	}
}

// keepServing serves one of the device's connections, and gives the kernel another whenever it
// ends. c is the first, nil: the kernel has none yet.
func (v *Device) keepServing(ctx context.Context, c *connection) {
	pause := retryMin
	for c != nil || ctx.Err() == nil { // the first is closed by who serves it
		begin := time.Now()
		var err error
		if c == nil {
			if c, err = v.reconnect(); err != nil {
				v.cfg.Log.Warn("cannot give the kernel a connection of a device", "device", v.Path(), "error", err)
			}
		}
		if err == nil {
			err = v.serve(ctx, c)
		}
		c = nil
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
func (v *Device) reconnect() (*connection, error) {
	c, fd, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := v.reconfigure(request{sockets: []uint32{uint32(fd)}}); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (v *Device) reconfigure(r request) error {
	return v.drv.reconfigure(v.index, backendOf(v.cfg.Name), r)
}

// isLost reports that the kernel does not have the device any more.
func (v *Device) isLost() bool {
	index, found := v.drv.find(backendOf(v.cfg.Name))
	return !found || index != v.index
}

// HoldIO keeps the I/O of a device that an earlier daemon has left waiting until release is called: the
// kernel's requests are not answered, and it repeats them. After release has returned nothing is held.
func (d *Driver) HoldIO(ctx context.Context, name string, log *slog.Logger) (release func()) {
	index, found := d.find(backendOf(name))
	if !found {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	v := &Device{drv: d, index: index, cfg: Config{Name: name, Log: log, Lost: func(*api.Error) {}, Serve: func(ctx context.Context, nc net.Conn) error {
		<-ctx.Done()
		return nc.Close()
	}}}
	for range d.connections(index) {
		v.wg.Go(func() { v.keepServing(ctx, nil) })
	}
	return func() {
		cancel()
		v.Wait()
	}
}

// Resize gives the kernel the size of the disk in bytes. It fails with an *api.Error.
func (v *Device) Resize(size uint64) error {
	if err := v.reconfigure(request{size: size}); err != nil {
		return v.drv.failure("resize "+v.Path(), err)
	}
	return nil
}

// End stops the device from reconnecting: a connection that ends from now on has ended for good.
func (v *Device) End() { v.ending.Store(true) }

// Wait waits until nothing is served any more.
func (v *Device) Wait() { v.wg.Wait() }

// Path is the device's file.
func (v *Device) Path() string { return v.drv.path(v.index) }

// Link is the link to it, which stays the same when the kernel's name for it does not.
func (v *Device) Link() string { return v.drv.link(v.cfg.Name) }
