package rnbd

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

// hosts are a server and two hosts that write to its disk, the first over a link that can
// be cut.
type hosts struct {
	*testServer
	r    *ram
	link *link
	a, b *Client
	disk *Disk // a's

	linger  time.Duration // of the next server
	writers Writers       // that it permits, if they do not share

	mu     sync.Mutex
	stored []Reservation // by the server
	fails  error         // of what it stores
}

var hostA, hostB = netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")

func overFrom(local netip.Addr) *transport.Config {
	return &transport.Config{Local: local, Protector: transport.Plaintext(testLogger(), hostA, hostB)}
}

func newHosts(t testing.TB, shared bool) *hosts { return newHostsOf(t, shared, newRAM(1<<20)) }

func newHostsOf(t testing.TB, shared bool, r *ram) *hosts {
	h := &hosts{r: r}
	h.start(t, anyPort, shared)
	h.link = startLink(t, h.addr.String())
	h.a = connectAs(t, "a", overFrom(hostA), h.link.ln.Addr().(*net.TCPAddr).AddrPort())
	h.b = connectAs(t, "b", overFrom(hostB), h.addr)
	h.disk = openDisk(t, h.a, "r")
	return h
}

// start starts the server, which knows the reservations that the one before has stored.
func (h *hosts) start(t testing.TB, at netip.AddrPort, shared bool) {
	h.testServer = startServerOn(t, overFrom(netip.Addr{}), at, rtrs.ServerConfig{Linger: h.linger})
	h.Server.writerGrace = time.Nanosecond
	h.Server.storeReservations = func(all []Reservation) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.fails == nil {
			h.stored = all
		}
		return h.fails
	}
	for _, p := range h.stored {
		h.Server.reservations[p.Disk] = p
	}
	e := ramExport("r", h.r)
	e.Writers = h.writers
	if shared {
		e.Writers = SharedWriters
	}
	if err := h.AddExport(e); err != nil {
		t.Fatal(err)
	}
}

func (h *hosts) restart(t testing.TB, shared bool) {
	h.stop(t)
	h.start(t, h.addr, shared)
}

// cutOff takes a's path away, and waits until its grace period is over.
func (h *hosts) cutOff(t testing.TB) {
	h.link.set(false)
	eventually(t, "the path is lost", func() bool { return h.a.Info().State == rtrs.Reconnecting })
	eventually(t, "its session ends", func() bool {
		return !slices.ContainsFunc(h.Exports()[0].Openers, func(o Opener) bool { return ofA(Token{Peer: o.Peer}) })
	})
}

// write has b write.
func (h *hosts) write(t testing.TB, p byte) *Disk {
	t.Helper()
	d := openDisk(t, h.b, "r")
	write(t, d, filled(p), 0)
	return d
}

func (h *hosts) writeAndLeave(t testing.TB) {
	t.Helper()
	if err := h.write(t, 2).Close(); err != nil {
		t.Fatal(err)
	}
}

// A writer that was away while another had the disk open is not let in again: what it
// wrote last, and has not been told of, would land on what the other has written.
func TestPreemptedWriterDoesNotGoOn(t *testing.T) { play(t, reservationScenes) }

var reservationScenes = []scene{
	{"another host came, wrote and left", checks.WriterReservation, overtaken},
	{"a write in doubt, and several writers", checks.InDoubt, inDoubt},
	{"a write in doubt, and several writers from then on", checks.InDoubt, inDoubtSharedLater},
}

func overtaken(t *testing.T) error {
	h := newHosts(t, false)
	write(t, h.disk, filled(1), 0)
	h.cutOff(t)
	parked := start(t, h.disk, block.OpWrite, filled(3), 0)
	h.writeAndLeave(t)
	h.link.set(true)
	errno := parked.wait(t)
	if got := h.r.at(0); got != 2 {
		return fmt.Errorf("the disk has %d, a write from before; %d was acknowledged last", got, 2)
	}
	if err := h.disk.Info().Err; errno != syscall.EIO || !errors.Is(err, ErrPreempted) || !strings.Contains(err.Error(), "by whom: plaintext:127.0.0.2") {
		return fmt.Errorf("%w: %w", errno, err)
	}
	return nil
}

// loseAnswer has a write the block with 1, whose answer is lost with the path.
func loseAnswer(t *testing.T, shared bool) (h *hosts, w *waiter) {
	var cut atomic.Bool
	r := newRAM(1 << 20)
	r.before = func(op block.Op, _, _ int64) syscall.Errno {
		if op == block.OpWrite && cut.CompareAndSwap(true, false) {
			h.link.set(false)
		}
		return 0
	}
	h = newHostsOf(t, shared, r)
	cut.Store(true)
	w = start(t, h.disk, block.OpWrite, filled(1), 0)
	eventually(t, "it is carried out", func() bool { return r.at(0) == 1 })
	eventually(t, "the path is lost", func() bool { return h.a.Info().State == rtrs.Reconnecting })
	return h, w
}

// inDoubtSharedLater: when the client is back at a server that has forgotten the session,
// the export is not open yet; then it is, with several writers, and another host is first.
func inDoubtSharedLater(t *testing.T) error {
	h, w := loseAnswer(t, false)
	h.linger = time.Minute // the next server does not forget the session again
	h.restart(t, false)
	reconnectB(t, h)
	if err := h.ReplaceExport("r", "not open yet"); err != nil {
		return err
	}
	h.link.set(true)
	eventually(t, "it waits for the export", func() bool { return h.disk.Info().Waits != nil && h.a.Info().State == rtrs.Connected })
	h.link.set(false)
	eventually(t, "the path is lost again", func() bool { return h.a.Info().State == rtrs.Reconnecting })
	if err := h.AddExport(sharedExport("r", h.r)); err != nil {
		return err
	}
	h.writeAndLeave(t)
	h.link.set(true)
	errno := w.wait(t)
	if got := h.r.at(0); got != 2 || errno != syscall.EIO {
		return fmt.Errorf("the disk has %d, of a write from before, which ended with %w; %d was acknowledged last", got, errno, 2)
	}
	return nil
}

// inDoubt: the answer to a write is lost, and the server with all that it knew of it;
// another host writes to the block. What has not been sent yet goes on.
func inDoubt(t *testing.T) error {
	h, first := loseAnswer(t, true)
	second := start(t, h.disk, block.OpWrite, filled(4), 4096)
	h.restart(t, true)
	reconnectB(t, h)
	h.writeAndLeave(t)
	h.link.set(true)
	errno := first.wait(t)
	if got := h.r.at(0); got != 2 {
		return fmt.Errorf("the disk has %d, of a write from before; %d was acknowledged last (%w)", got, 2, errno)
	}
	if errno != syscall.EIO {
		return fmt.Errorf("the write in doubt: %w, want EIO", errno)
	}
	if errno := second.wait(t); errno != 0 || h.r.at(4096) != 4 {
		return fmt.Errorf("the write that was never sent: %w, the disk has %d", errno, h.r.at(4096))
	}
	return nil
}

func TestReservationOfAWriter(t *testing.T) {
	for name, c := range map[string]struct {
		taken   bool
		shared  bool
		between func(t *testing.T, h *hosts)
	}{
		"nobody came": {between: func(*testing.T, *hosts) {}},
		"another read": {between: func(t *testing.T, h *hosts) {
			if _, err := h.b.Open(testContext(t), "r", OpenOptions{ReadOnly: true}); err != nil {
				t.Fatal(err)
			}
		}},
		"another is there": {taken: true, between: func(t *testing.T, h *hosts) { h.write(t, 2) }},
		"another was cut off": {taken: true, between: func(t *testing.T, h *hosts) {
			h.write(t, 2)
			h.b.Close()
		}},
		"another program of its own host": {taken: true, between: func(t *testing.T, h *hosts) {
			openDisk(t, connectAs(t, "c", overFrom(hostA), h.addr), "r").Close()
		}},
		"the server restarted":               {between: func(t *testing.T, h *hosts) { h.restart(t, false) }},
		"another came, the server restarted": {taken: true, between: func(t *testing.T, h *hosts) { h.writeAndLeave(t); h.restart(t, false) }},
		"the server restarted, another came": {taken: true, between: func(t *testing.T, h *hosts) { h.restart(t, false); reconnectB(t, h); h.writeAndLeave(t) }},
		"the server has forgotten its writers": {taken: true, between: func(t *testing.T, h *hosts) {
			h.stored = nil
			h.restart(t, false)
		}},
		"the export was removed and added":               {between: func(t *testing.T, h *hosts) { again(t, h) }},
		"the export was removed and added, another came": {taken: true, between: func(t *testing.T, h *hosts) { again(t, h); h.writeAndLeave(t) }},
		"another came in vain: it could not be written down": {between: func(t *testing.T, h *hosts) {
			h.fail(errors.New("no space left on device"))
			if _, err := h.b.Open(testContext(t), "r", OpenOptions{}); !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "who writes to it") {
				t.Errorf("another host: %v", err)
			}
			if n := len(h.Exports()[0].Openers); n != 0 {
				t.Errorf("%d have it open", n)
			}
			h.fail(nil)
		}},
		"writers share": {shared: true, between: func(t *testing.T, h *hosts) { h.writeAndLeave(t) }},
		"writers shared while another came": {taken: true, shared: true, between: func(t *testing.T, h *hosts) {
			h.writeAndLeave(t)
			if err := h.SetWriters("r", OneWriter); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHosts(t, c.shared)
			h.cutOff(t)
			parked := start(t, h.disk, block.OpWrite, filled(3), 0)
			c.between(t, h)
			before := h.r.at(0)
			h.link.set(true)
			errno := parked.wait(t)
			if !c.taken {
				if errno != 0 || h.r.at(0) != 3 {
					t.Errorf("%v; the disk has %d", errno, h.r.at(0))
				}
				return
			}
			if errno != syscall.EIO || h.r.at(0) != before {
				t.Errorf("%v; the disk has %d", errno, h.r.at(0))
			}
			// For good, also over a restart of the client; until the disk is opened anew.
			h.b.Close()
			claim := h.disk.Claim()
			if e := do(t, h.disk, block.OpRead, make([]byte, 512), 0, 0, 0); e != syscall.EIO {
				t.Errorf("a read: %v", e)
			}
			for _, writers := range []Writers{SharedWriters, MigrationWriters, OneWriter} { // a server that would let it in is not asked
				if err := errors.Join(h.SetWriters("r", writers), h.disk.reopen(testContext(t), h.a.rt, nil)); !errors.Is(err, ErrPreempted) {
					t.Errorf("opened again: %v", err)
				}
			}
			if err := h.disk.Close(); err != nil {
				t.Error(err)
			}
			a := connectAs(t, "a again", overFrom(hostA), h.addr)
			eventually(t, "it is refused after its restart", func() bool {
				_, err := a.Open(testContext(t), "r", OpenOptions{Claim: claim})
				return errors.Is(err, ErrPreempted)
			})
			var d *Disk
			eventually(t, "it is let in anew", func() bool {
				var err error
				d, err = a.Open(testContext(t), "r", OpenOptions{})
				return err == nil
			})
			write(t, d, filled(4), 0)
		})
	}
}

func (h *hosts) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fails = err
}

func reconnectB(t testing.TB, h *hosts) {
	h.b.Close()
	h.b = connectAs(t, "b again", overFrom(hostB), h.addr)
}

func again(t testing.TB, h *hosts) {
	if err := errors.Join(h.RemoveExport("r"), h.AddExport(ramExport("r", h.r))); err != nil {
		t.Fatal(err)
	}
}

// A switch from several writers to one while one has the disk open makes it that one's.
func TestOnlyWriterOfSharedDiskBecomesItsWriter(t *testing.T) {
	h := newHosts(t, true)
	h.writeAndLeave(t)
	if err := h.SetWriters("r", OneWriter); err != nil {
		t.Fatal(err)
	}
	h.cutOff(t)
	parked := start(t, h.disk, block.OpWrite, filled(3), 0)
	h.link.set(true)
	if errno := parked.wait(t); errno != 0 {
		t.Error(errno, h.disk.Info().Err)
	}
}

// What peers of before know nothing of stays as it was to them.
func TestOpenWithoutTheReservationIsAsBefore(t *testing.T) {
	m := openMsg{Access: accessRW, Name: "docs", Claim: Claim{Attachment: block.ID{2}}}
	old, b := m.Append(nil), []byte(nil)
	m.Claim.Writer = true
	b = m.Append(nil)
	if old[5] != 0 || b[5] != openWriter || !bytes.Equal(old[6:], b[6:]) {
		t.Errorf("% x\n% x", old, b)
	}
	var back openMsg
	if err := back.Parse(b); err != nil || back != m {
		t.Errorf("%+v, %v", back, err)
	}
}

// Changes that come while reservations are written down are written with the next list, all at
// once: a peer that opens and closes a disk again and again keeps nobody waiting.
func TestReservationsAreStoredTogether(t *testing.T) {
	const disks = 20
	writing, written := make(chan struct{}, disks+1), make(chan struct{})
	close(written) // at first
	var lists atomic.Int32
	var mu sync.Mutex
	var last []Reservation
	s := startServer(t)
	s.storeReservations = func(all []Reservation) error {
		lists.Add(1)
		mu.Lock()
		wait := written
		last = all
		mu.Unlock()
		writing <- struct{}{}
		<-wait
		return nil
	}
	c := connect(t, s.addr)
	for i := range disks {
		name := fmt.Sprint("disk", i)
		if err := s.AddExport(ramExport(name, newRAM(1<<20))); err != nil {
			t.Fatal(err)
		}
		openDisk(t, c, name)
		<-writing
	}
	mu.Lock()
	written = make(chan struct{})
	mu.Unlock()
	before := lists.Load()
	for i := range disks {
		if err := s.RemoveExport(fmt.Sprint("disk", i)); err != nil {
			t.Fatal(err)
		}
	}
	<-writing
	close(written)
	s.saves.Wait()
	if n := lists.Load() - before; n > 2 {
		t.Errorf("%d changes at once are written in %d lists", disks, n)
	}
	for _, p := range last {
		if !p.allLeft() {
			t.Errorf("%v has not left", p)
		}
	}
	if len(last) != disks {
		t.Errorf("%d reservations are stored", len(last))
	}
}

// Disks that are opened while the reservations are being stored share the next time, and none is
// open before its reservation is stored.
func TestReservationsAreStoredForAllThatWait(t *testing.T) {
	const disks = 20
	var exports []Export
	for i := range disks {
		exports = append(exports, ramExport(fmt.Sprint("r", i), newRAM(1<<20)))
	}
	srv := startServer(t, exports...)
	opened := func() (n int) {
		for _, e := range srv.Server.Exports() {
			n += len(e.Openers)
		}
		return n
	}
	var mu sync.Mutex
	var stored [][]Reservation
	srv.Server.storeReservations = func(all []Reservation) error {
		eventually(t, "all are asked for", func() bool { return opened() == disks })
		mu.Lock()
		defer mu.Unlock()
		stored = append(stored, all)
		return nil
	}
	cl := connect(t, srv.addr)
	var wg sync.WaitGroup
	for i := range disks {
		wg.Go(func() {
			d, err := cl.Open(testContext(t), fmt.Sprint("r", i), OpenOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if last := stored[len(stored)-1]; !slices.ContainsFunc(last, func(p Reservation) bool { return indexOf(p.Writers, d.claim.Attachment) >= 0 }) {
				t.Errorf("%s is open, and its reservation is not stored", d.Export())
			}
		})
	}
	wg.Wait()
	if n := len(stored); n > 2 {
		t.Errorf("stored %d times for %d disks that are opened at once, want 2 at most", n, disks)
	}
}
