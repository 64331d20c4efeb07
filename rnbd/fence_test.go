package rnbd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

// A writer that was fenced writes no more once the fence has been answered.
func TestFencedWriterWritesNoMore(t *testing.T) { play(t, fenceScenes) }

var fenceScenes = []scene{
	{"its session goes on", checks.Fence, fencedInSession},
	{"its session was lost", checks.WriterReservation, fencedWhileAway},
}

func ofA(t Token) bool { return t.Peer == transport.Identity("plaintext:"+hostA.String()) }

func (h *hosts) fence(ctx context.Context) (FenceResult, error) { return h.Fence(ctx, "r", ofA) }

// fencedInSession: a write hangs in the storage when its client is fenced. The fence waits
// for it, another host attaches the disk and writes, and the fenced one writes again.
func fencedInSession(t *testing.T) error {
	r := newRAM(1 << 20)
	begun, goOn := make(chan struct{}), make(chan struct{})
	var hang atomic.Bool
	r.before = func(op block.Op, _, _ int64) syscall.Errno {
		if op == block.OpWrite && hang.CompareAndSwap(true, false) {
			close(begun)
			<-goOn
		}
		return 0
	}
	h := newHostsOf(t, false, r)
	hang.Store(true)
	first := start(t, h.disk, block.OpWrite, filled(1), 0)
	<-begun
	type outcome struct {
		f   FenceResult
		err error
	}
	fenced := make(chan outcome, 1)
	go func() {
		f, err := h.fence(testContext(t))
		fenced <- outcome{f, err}
	}()
	if checks.On(checks.Fence) {
		eventually(t, "it is fenced", func() bool { return do(t, h.disk, block.OpRead, make([]byte, 512), 0, 0, 0) == syscall.EPERM })
		select {
		case o := <-fenced:
			return fmt.Errorf("the fence was answered while a write hangs: %+v", o)
		default:
		}
	}
	close(goOn)
	o := <-fenced
	if errno := first.wait(t); o.err != nil || errno != 0 {
		return fmt.Errorf("%w, the write under way: %w", o.err, errno)
	}
	if f := o.f; checks.On(checks.Fence) && (f.Generation != 1 || f.Drained != 1 || f.Running != 0 || len(f.Tokens) != 1 || f.Tokens[0].Attachment != h.disk.Claim().Attachment) {
		return fmt.Errorf("%+v", f)
	}
	h.b.Close()
	reconnectB(t, h)
	if checks.On(checks.Fence) { // otherwise the device of before is in the way
		h.write(t, 2)
	}
	errno := do(t, h.disk, block.OpWrite, filled(3), 0, 0, 0)
	if got := r.at(0); errno != syscall.EPERM || got == 3 {
		return fmt.Errorf("a write of the fenced host: %w, the disk has %d", errno, got)
	}
	return nil
}

// fencedWhileAway: a host is fenced that is away with a write that it has not sent.
func fencedWhileAway(t *testing.T) error {
	h := newHosts(t, false)
	write(t, h.disk, filled(1), 0)
	h.cutOff(t)
	parked := start(t, h.disk, block.OpWrite, filled(3), 0)
	if f, err := h.fence(testContext(t)); err != nil || f.Generation != 1 || len(f.Tokens) != 1 {
		return fmt.Errorf("%+v, %w", f, err)
	}
	h.writeAndLeave(t)
	h.link.set(true)
	if errno, got := parked.wait(t), h.r.at(0); errno != syscall.EPERM || got != 2 {
		return fmt.Errorf("%w, the disk has %d", errno, got)
	}
	return nil
}

// The fence holds whatever comes back, until the disk is attached anew.
func TestFenceOutlivesSessionsAndRestarts(t *testing.T) {
	for name, shared := range map[string]bool{"one writer": false, "shared writers": true} {
		t.Run(name, func(t *testing.T) {
			h := newHosts(t, shared)
			write(t, h.disk, filled(1), 0)
			claim := h.disk.Claim()
			if !shared {
				h.b.Close()
			} else {
				h.write(t, 1)
			}
			if f, err := h.fence(testContext(t)); err != nil || len(f.Tokens) != 1 {
				t.Fatalf("%+v, %v", f, err)
			}
			refused := func(when string, d *Disk) {
				t.Helper()
				for _, op := range []block.Op{block.OpWrite, block.OpRead} {
					if errno := do(t, d, op, filled(9), 0, 0, 0); errno != syscall.EPERM || h.r.at(0) == 9 {
						t.Errorf("%s: %v of the fenced host: %v", when, op, errno)
					}
				}
				if errno := do(t, d, block.OpFlush, nil, 0, 0, 0); errno != syscall.EPERM {
					t.Errorf("%s: a flush: %v", when, errno)
				}
			}
			refused("in its session", h.disk)
			h.cutOff(t)
			h.link.set(true)
			refused("in the next session", h.disk)
			h.restart(t, shared)
			refused("at the next server", h.disk)
			if err := h.disk.Info().Err; !errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "attach it again") {
				t.Errorf("its state: %v", err)
			}
			if got := h.disk.Claim(); got.Attachment != claim.Attachment || !got.Writer {
				t.Errorf("its claim is %+v", got)
			}
			if err := h.disk.Close(); err != nil {
				t.Error(err)
			}
			a := connectAs(t, "a restarted", overFrom(hostA), h.addr)
			d, err := a.Open(testContext(t), "r", OpenOptions{Claim: claim})
			if err != nil || d.Geometry().Size != 1<<20 || !errors.Is(d.Info().Err, ErrFenced) || !strings.Contains(d.Info().Err.Error(), "in generation 1") {
				t.Fatalf("%+v, %v", d, err)
			}
			refused("after its restart", d)
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			d = openDisk(t, a, "r")
			write(t, d, filled(5), 0)
			if e := h.Exports()[0]; e.Generation != 1 || e.Fenced != 1 {
				t.Errorf("%+v", e)
			}
		})
	}
}

// Who only reads, and other writers, notice nothing.
func TestFenceIsOfOnePeersWriters(t *testing.T) {
	h := newHosts(t, true)
	reader, err := h.a.Open(testContext(t), "r", OpenOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	other := h.write(t, 2)
	for i := range 2 { // a second one finds nothing to do
		f, err := h.fence(testContext(t))
		if err != nil || f.Generation != 1 || len(f.Tokens) != 1-i || f.Drained != 0 {
			t.Errorf("%+v, %v", f, err)
		}
	}
	write(t, other, filled(3), 0)
	if got := read(t, reader, 512, 0); got[0] != 3 {
		t.Errorf("read %d", got[0])
	}
	h.restart(t, true)
	eventually(t, "it is back", func() bool { return h.b.Info().State == rtrs.Connected && h.b.Info().Reconnects == 1 })
	write(t, other, filled(4), 0)
}

// A fence that was not answered in time, or could not be stored, is in force, and can be
// asked for again.
func TestFenceThatCouldNotBeFinished(t *testing.T) {
	r := newRAM(1 << 20)
	begun, goOn, _ := r.holdFirstWrite()
	h := newHostsOf(t, false, r)
	hung := start(t, h.disk, block.OpWrite, filled(1), 0)
	<-begun
	full := errors.New("no space left on device")
	h.fail(full)
	if f, err := h.fence(testContext(t)); !errors.Is(err, full) || f.Generation != 1 || f.Running != 1 {
		t.Errorf("%+v, %v", f, err)
	}
	if errno := do(t, h.disk, block.OpRead, make([]byte, 512), 0, 0, 0); errno != syscall.EPERM {
		t.Errorf("a read: %v", errno)
	}
	h.fail(nil)
	soon, cancel := context.WithCancel(testContext(t))
	cancel()
	if f, err := h.fence(soon); !errors.Is(err, context.Canceled) || f.Running != 1 || f.Generation != 1 || len(h.stored) != 1 || h.stored[0].Generation != 1 {
		t.Errorf("%+v, %v; stored is %+v", f, err, h.stored)
	}
	close(goOn)
	if f, err := h.fence(testContext(t)); err != nil || f.Running != 0 || f.Generation != 1 {
		t.Errorf("%+v, %v", f, err)
	}
	if errno := hung.wait(t); errno != 0 {
		t.Error(errno)
	}
	if _, err := h.Fence(testContext(t), "none", ofA); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := h.ReplaceExport("r", "it is opened again"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.fence(testContext(t)); !errors.Is(err, ErrNotReady) {
		t.Error(err)
	}
}

// A host that has another identity by now is known by the name that it had.
func TestTokenHasTheNameOfItsPeer(t *testing.T) {
	h := newHosts(t, false)
	h.Server.nameOf = func(transport.Identity) string { return "alpha" }
	h.disk.Close()
	h.disk = openDisk(t, h.a, "r")
	f, err := h.Fence(testContext(t), "r", func(t Token) bool { return t.Name == "alpha" })
	if err != nil || len(f.Tokens) != 1 || f.Tokens[0].Name != "alpha" || !ofA(f.Tokens[0]) {
		t.Errorf("%+v, %v", f, err)
	}
}

// A host that claims the attachment of another does not keep that one from being fenced.
func TestClaimedAttachmentOfAnotherIsFencedWithIt(t *testing.T) {
	h := newHosts(t, true)
	stolen, err := h.b.Open(testContext(t), "r", OpenOptions{Claim: h.disk.Claim()})
	if err != nil {
		t.Fatal(err)
	}
	if f, err := h.fence(testContext(t)); err != nil || len(f.Tokens) != 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	if err := stolen.Close(); err != nil {
		t.Error(err)
	}
	h.cutOff(t)
	h.link.set(true)
	if errno := do(t, h.disk, block.OpWrite, filled(9), 0, 0, 0); errno != syscall.EPERM {
		t.Errorf("in the next session: %v", errno)
	}
}

// The server remembers so many writers of a disk, whatever their number.
func TestTokensOfADiskAreBounded(t *testing.T) {
	h := newHosts(t, true)
	for range maxWriters + 10 {
		openDisk(t, h.b, "r").Close()
	}
	h.Server.mu.Lock()
	p := h.Server.reservations[h.r.identity.Disk]
	h.Server.mu.Unlock()
	if len(p.Writers) != maxWriters || indexOf(p.Writers, h.disk.Claim().Attachment) < 0 {
		t.Errorf("%d writers are remembered", len(p.Writers))
	}
}

// What a hostile server answers as fenced is looked at like any disk.
func TestMalformedAnswerOfFencedDisk(t *testing.T) {
	good := openRsp{Device: 1, Sectors: 8, MaxIO: 8, Physical: 512, Logical: 512, Identity: block.Identity{Disk: block.NewID(), Life: block.NewID()}, Result: openFenced, Detail: "in generation 1"}
	for name, spoil := range map[string]func(*openRsp){
		"no UUID":          func(m *openRsp) { m.Identity.Disk = block.ID{} },
		"too many sectors": func(m *openRsp) { m.Sectors = 1 << 62 },
		"no I/O":           func(m *openRsp) { m.MaxIO = 0 },
		"odd blocks":       func(m *openRsp) { m.Physical = 513 },
		"unknown result":   func(m *openRsp) { m.Result = openResults },
	} {
		bad, m := good, openRsp{}
		spoil(&bad)
		if err := m.Parse(bad.Append(nil)); !errors.Is(err, ErrWire) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var m openRsp
	if err := m.Parse(good.Append(nil)); err != nil || m != good {
		t.Errorf("%+v, %v", m, err)
	}
}

// A peer that lost its name since it was let in, as the configuration has it no more, is
// fenced with what it has open.
func TestFenceFindsAWriterWhosePeerHasLostItsName(t *testing.T) {
	r := newRAM(1 << 20)
	begun, goOn, _ := r.holdFirstWrite()
	h := newHostsOf(t, false, r)
	var name atomic.Value
	name.Store("alpha")
	h.Server.nameOf = func(transport.Identity) string { return name.Load().(string) }
	h.disk.Close()
	h.disk = openDisk(t, h.a, "r")
	hung := start(t, h.disk, block.OpWrite, filled(1), 0)
	<-begun
	name.Store("")
	soon, cancel := context.WithCancel(testContext(t))
	cancel()
	f, err := h.Fence(soon, "r", func(t Token) bool { return t.Name == "alpha" })
	if !errors.Is(err, context.Canceled) || len(f.Tokens) != 1 || f.Running != 1 {
		t.Errorf("the fence was answered while a write hangs: %+v, %v", f, err)
	}
	close(goOn)
	if errno := hung.wait(t); errno != 0 {
		t.Error(errno)
	}
	if errno := do(t, h.disk, block.OpRead, make([]byte, 512), 0, 0, 0); errno != syscall.EPERM {
		t.Errorf("a read: %v", errno)
	}
}

// A host whose path was lost before it heard that it had a token asks again without one.
func TestFencedBeforeItHadItsToken(t *testing.T) {
	h := newHosts(t, false)
	asked := Claim{Attachment: h.disk.Claim().Attachment}
	h.cutOff(t)
	if f, err := h.fence(testContext(t)); err != nil || len(f.Tokens) != 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	again := connectAs(t, "a restarted", overFrom(hostA), h.addr)
	if d, err := again.Open(testContext(t), "r", OpenOptions{Claim: asked}); !errors.Is(err, ErrFenced) {
		t.Errorf("%+v, %v", d, err)
	}
	write(t, openDisk(t, again, "r"), filled(1), 0)
}

// Whoever was looked at while it was allowed, and is disallowed and fenced before it is let in, is not let in: whoever has fenced it need not
// fear what was on its way.
func TestDisallowedWhileItIsLetIn(t *testing.T) {
	h := newHosts(t, false)
	h.Server.mu.Lock()
	e := h.Server.exports["r"]
	h.Server.mu.Unlock()
	peer := transport.Identity("plaintext:" + hostA.String())
	s := &session{srv: h.Server, info: rtrs.SessionInfo{Peer: peer}}
	for what, readOnly := range map[string]bool{"a writer": false, "a reader": true} {
		late := newDevice(e, s, block.NewID(), readOnly)
		if err := h.SetAllow("r", nil, false); err != nil {
			t.Fatal(err)
		}
		if refused, err := h.Server.admitDevice(late, false); refused != nil || !errors.Is(err, syscall.EACCES) {
			t.Errorf("%s: %+v, %v", what, refused, err)
		}
	}
	if err := errors.Join(h.SetAllow("r", []transport.Identity{peer}, false), h.SetReaders("r", []transport.Identity{peer})); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Server.admitDevice(newDevice(e, s, block.NewID(), false), false); !errors.Is(err, syscall.EACCES) {
		t.Errorf("a writer who may only read: %v", err)
	}
}
