package verbs

import (
	"fmt"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/rdmap"
)

// Access is a set of rights on a memory region.
type Access uint8

// The rights. Local read is always granted.
const (
	LocalWrite Access = 1 << iota
	RemoteRead
	RemoteWrite
	RemoteAtomic
	WindowBind // memory windows may be bound to the region
	Volatile   // the owner may change the memory while it is sent, see MR
)

func (a Access) remote() rdmap.Access {
	var r rdmap.Access
	if a&RemoteRead != 0 {
		r |= rdmap.RemoteRead
	}
	if a&RemoteWrite != 0 {
		r |= rdmap.RemoteWrite
	}
	if a&RemoteAtomic != 0 {
		r |= rdmap.RemoteAtomic
	}
	return r
}

// MR is a memory region: local memory that work requests may name and, through
// its STag, a window of it that peers on queue pairs of the same PD may reach.
// Tagged offsets count from 0 at the window's start, or from a base (RegisterMRAt).
//
// Memory that changes while it is being sent spoils the CRC of its FPDU, which
// ends the stream. Payloads of up to 256 bytes are copied first (not with
// markers) and may change at any time. So may what a peer reads from a region
// with LocalWrite, since peers may change it. The source of a Send or Write, and
// a region without LocalWrite while peers read it, must not change, unless the
// region is registered with Volatile: what is sent from it is copied first where there is
// a CRC, and the peer gets old bytes or new ones. A program that was written for adapters,
// which read memory once, may count on that: QEMU sends the memory of a guest that runs.
//
// Peers' Atomics are atomic with respect to each other, on any stream and STag of
// the device (RFC 7306 section 5.3), and to local use of the same 8 aligned
// bytes through sync/atomic; plain local access is a data race. The value is a
// uint64 in the host's byte order.
type MR struct {
	win      window
	buf      []byte
	local    bool // LocalWrite
	bindable bool // WindowBind
	volatile bool // Volatile
	charge   charge
	extent   extent
	refs     atomic.Int64  // work requests and, each counting oneWindow, memory windows that use the region; negative: deregistered
	over     chan struct{} // of a region that is withdrawn: closed when nothing uses it any more
}

const (
	// gone is added to refs when a region is deregistered.
	gone = -1 << 62
	// oneWindow is more than there are work requests.
	oneWindow = 1 << 32
)

// RegisterMR registers buf, all of which becomes the window. The region is
// charged to the PD's ULP. Without a remote right the STag opens nothing.
//
// It fails with ErrForeignMemory for another ULP's memory; with ErrTrust for memory of
// another protection domain that peers might write to, unless both trust models
// permit that, and for a remote right where the streams of the domain share no STags (RFC
// 5042 section 6.1.1); with a *QuotaError; with ErrClosed if the domain is freed; and if
// buf is empty, longer than 4 GiB - 1, or open to a peer's changes without LocalWrite.
func (pd *PD) RegisterMR(buf []byte, access Access) (*MR, error) {
	return pd.RegisterMRAt(0, buf, access)
}

// RegisterMRAt is RegisterMR with base as the tagged offset of the first byte, as where
// peers are told addresses. It fails also if the last offset would be beyond 2^64 - 1.
func (pd *PD) RegisterMRAt(base uint64, buf []byte, access Access) (*MR, error) {
	if len(buf) == 0 || uint64(len(buf)) > maxMRLen {
		return nil, fmt.Errorf("verbs: register a memory region of %d bytes: 1 to %d are possible", len(buf), uint64(maxMRLen))
	}
	if err := checkBase(base, len(buf)); err != nil {
		return nil, err
	}
	if err := checkAccess(access, access&LocalWrite != 0); err != nil {
		return nil, err
	}
	if err := pd.checkRemote(access); err != nil {
		return nil, err
	}
	if err := pd.enter(); err != nil {
		return nil, err
	}
	mr := &MR{buf: buf[:len(buf):len(buf)], local: access&LocalWrite != 0, bindable: access&WindowBind != 0, volatile: access&Volatile != 0, charge: charge{ulp: &pd.ulp.acct}}
	mr.charge.n[resMRs], mr.charge.n[resBytes] = 1, int64(len(buf))
	if err := pd.ulp.dev.prm.take(&mr.charge); err != nil {
		pd.leave()
		return nil, err
	}
	w := &mr.win
	w.init(pd, false)
	w.volatile = mr.local || mr.volatile
	if err := pd.ulp.dev.memory.enter(mr); err != nil {
		pd.ulp.dev.prm.give(&mr.charge)
		pd.leave()
		return nil, err
	}
	w.mu.Lock()
	w.openLocked(binding{stag: w.stags().insert(w), mem: mr.buf, rights: access.remote(), base: base}, nil)
	w.mu.Unlock()
	return mr, nil
}

// checkBase refuses n bytes whose tagged offsets would wrap.
func checkBase(base uint64, n int) error {
	if base+uint64(n-1) < base {
		return fmt.Errorf("verbs: open %d bytes at the tagged offset %#x: the last would be beyond 2^64 - 1", n, base)
	}
	return nil
}

// checkAccess refuses peers the right to change memory that the owner itself may not
// change.
func checkAccess(a Access, localWrite bool) error {
	if a&(RemoteWrite|RemoteAtomic) != 0 && !localWrite {
		return fmt.Errorf("verbs: register memory with access %#x: RemoteWrite and RemoteAtomic need LocalWrite", uint8(a))
	}
	return nil
}

// checkRemote refuses remote rights to a region's STag, which is valid on every stream of
// the protection domain, where the streams don't trust each other.
func (pd *PD) checkRemote(a Access) error {
	if a.remote() != 0 && pd.sharesNoSTags() {
		return trustError(pd.model, "6.1.1", "give remote rights to the STag of a memory region, which several streams may use: bind a memory window for one stream")
	}
	return nil
}

// STag is the region's current steering tag, or that of an OpRegister that is
// posted but not yet executed in its send queue.
func (mr *MR) STag() uint32 { return mr.win.tag() }

// Bytes is the registered memory.
func (mr *MR) Bytes() []byte { return mr.buf }

// Len is the size of the registered memory in bytes.
func (mr *MR) Len() int { return len(mr.buf) }

// Invalidate ends remote access through the region's STag. When it returns, no
// peer's operation reads or changes the memory through it any more. Local use
// and memory windows go on. It fails with ErrClosed after Deregister.
func (mr *MR) Invalidate() error { return mr.win.invalidate() }

// Reregister is fast registration: it ends access through the old STag, as Invalidate
// does, and opens the window of n bytes at off of the registered memory under a new,
// random STag. It allocates nothing. It fails with ErrInUse while an OpRegister of the
// region is posted but not yet executed, with ErrClosed after Deregister, with ErrTrust
// as RegisterMR does, and for a window outside the region.
func (mr *MR) Reregister(off, n int, access Access) (stag uint32, err error) {
	return mr.reregister(off, n, access, nil)
}

// Target takes what peers write to a region in its place.
type Target interface {
	// Place takes p, which belongs at byte off of the region's window, and is whole: its CRC
	// is right, if there is one. It returns false if it has not kept p, which goes to the
	// region's memory then. It is called by goroutines that receive, and holds up their
	// streams: it does not wait for anybody, and does not call verbs.
	Place(off uint64, p []byte) bool
}

// ReregisterTo is Reregister of the first n bytes with RemoteWrite alone, so that what peers
// write goes to a target, until Divert, or the end of access through the STag. After either
// has returned, the target takes nothing any more. It fails as Reregister does.
func (mr *MR) ReregisterTo(n int, to Target) (stag uint32, err error) {
	return mr.reregister(0, n, RemoteWrite, to)
}

// Divert has what peers write from now on go to the region's own memory, and waits for
// what the target is taking. The STag stays valid. It does nothing where there is no target.
func (mr *MR) Divert() {
	mr.win.mu.Lock()
	defer mr.win.mu.Unlock()
	mr.win.divertLocked()
}

func (mr *MR) reregister(off, n int, access Access, to Target) (stag uint32, err error) {
	if off < 0 || n <= 0 || off > len(mr.buf) || n > len(mr.buf)-off {
		return 0, fmt.Errorf("verbs: register a window of %d bytes at %d in a region of %d", n, off, len(mr.buf))
	}
	if err := checkAccess(access, mr.local); err != nil {
		return 0, err
	}
	w := &mr.win
	if err := w.pd.checkRemote(access); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.state == windowGone:
		return 0, ErrClosed
	case w.next.stag != 0:
		return 0, fmt.Errorf("verbs: register memory whose registration is posted: %w", ErrInUse)
	}
	w.closeLocked()
	w.openLocked(binding{stag: w.stags().insert(w), mem: mr.buf[off : off+n], rights: access.remote(), target: to}, nil)
	return w.stag, nil
}

// Deregister ends the registration. It fails with ErrInUse while posted work
// requests name the region, see Withdraw, or memory windows are bound to it.
func (mr *MR) Deregister() error {
	w := &mr.win
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == windowGone {
		return nil
	}
	if !mr.refs.CompareAndSwap(0, gone) {
		return fmt.Errorf("verbs: deregister memory that %d posted work requests and memory windows use: %w", users(mr.refs.Load()), ErrInUse)
	}
	w.closeLocked()
	w.state = windowGone
	mr.giveBack()
	return nil
}

// users is how many work requests and memory windows refs counts.
func users(refs int64) int64 { return refs/oneWindow + refs%oneWindow }

// giveBack ends what a region that is gone was charged for.
func (mr *MR) giveBack() {
	w := &mr.win
	w.pd.ulp.dev.memory.leave(&mr.extent)
	w.pd.ulp.dev.prm.give(&mr.charge)
	w.pd.leave()
}

// claim keeps the region registered for a work request that names it. It fails if the
// region is already deregistered.
func (mr *MR) claim() (rdmap.Pin, error) {
	if mr.refs.Add(1) <= 0 {
		mr.refs.Add(-1)
		return nil, errDeregistered
	}
	return (*ref)(mr), nil
}

var errDeregistered error = &closedError{what: "post a work request that names deregistered memory"}

// ref is a work request's claim on local memory.
type ref MR

func (r *ref) Unpin() { r.refs.Add(-1) }
