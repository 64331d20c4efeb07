package verbs

import (
	"fmt"
	"runtime"
	"sync"
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
// Tagged offsets count from 0 at the window's start.
//
// Memory that changes while it is being sent, be it by a Send, a Write or a
// peer's Read, spoils the CRC of its FPDU, which ends the stream. Payloads of up
// to 256 bytes are copied first (not with markers) and may change at any time.
//
// pins counts accesses by peers that are being carried out; shut is added to it
// while the window is closed, so a pin on a closed window turns out negative.
type MR struct {
	pd     *PD
	buf    []byte
	local  bool // LocalWrite
	charge charge
	refs   atomic.Int32 // work requests that name the region; negative: deregistered

	pins atomic.Int64

	mu    sync.Mutex // serialises changes of the window
	state mrState
	// The window; changed only while it is closed and nobody pins it.
	stag   uint32
	window []byte
	rights rdmap.Access
}

type mrState uint8

const (
	mrOpen mrState = iota
	mrInvalid
	mrGone
)

const shut = -1 << 40

// gone is added to the refs of a region that is deregistered.
const gone = -1 << 30

// RegisterMR registers buf, all of which becomes the window. The region is
// charged to the PD's ULP. Without a remote right the STag opens nothing.
func (pd *PD) RegisterMR(buf []byte, access Access) (*MR, error) {
	if len(buf) == 0 || len(buf) > maxMRLen {
		return nil, fmt.Errorf("verbs: register a memory region of %d bytes: 1 to %d are possible", len(buf), maxMRLen)
	}
	if err := checkAccess(access, access&LocalWrite != 0); err != nil {
		return nil, err
	}
	if err := pd.enter(); err != nil {
		return nil, err
	}
	mr := &MR{pd: pd, buf: buf[:len(buf):len(buf)], local: access&LocalWrite != 0, charge: charge{ulp: &pd.ulp.acct}}
	mr.charge.n[resMRs], mr.charge.n[resBytes] = 1, int64(len(buf))
	if err := pd.ulp.dev.prm.take(&mr.charge); err != nil {
		pd.leave()
		return nil, err
	}
	mr.window, mr.rights = mr.buf, access.remote()
	mr.pins.Store(shut)
	mr.stag = pd.ulp.dev.stags.insert(mr)
	mr.pins.Add(-shut)
	return mr, nil
}

// checkAccess enforces that a peer gets no right to change memory that the
// owner itself may not change.
func checkAccess(a Access, localWrite bool) error {
	if a&(RemoteWrite|RemoteAtomic) != 0 && !localWrite {
		return fmt.Errorf("verbs: register memory with access %#x: RemoteWrite and RemoteAtomic need LocalWrite", uint8(a))
	}
	return nil
}

// STag is the region's current steering tag.
func (mr *MR) STag() uint32 {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	return mr.stag
}

// Bytes is the registered memory.
func (mr *MR) Bytes() []byte { return mr.buf }

// Len is the size of the registered memory in bytes.
func (mr *MR) Len() int { return len(mr.buf) }

// closeWindow ends remote access; when it returns nothing in flight reads or
// writes the memory through the old STag (RFC 5042 section 6.2.2). Pins are
// never held across a wait, so spinning is short.
func (mr *MR) closeWindow() {
	if mr.state != mrOpen {
		return
	}
	mr.pins.Add(shut)
	for mr.pins.Load() != shut {
		runtime.Gosched()
	}
	mr.pd.ulp.dev.stags.remove(mr.stag)
	mr.state = mrInvalid
}

// Invalidate ends remote access to the region. When it returns, no peer's
// operation reads or changes the memory any more. Local use goes on.
func (mr *MR) Invalidate() error {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	if mr.state == mrGone {
		return ErrClosed
	}
	mr.closeWindow()
	return nil
}

// Reregister is fast registration: it ends access through the old STag, as
// Invalidate does, and opens the window of n bytes at off of the registered
// memory under a new, random STag. It allocates nothing.
func (mr *MR) Reregister(off, n int, access Access) (stag uint32, err error) {
	if off < 0 || n <= 0 || off > len(mr.buf) || n > len(mr.buf)-off {
		return 0, fmt.Errorf("verbs: register a window of %d bytes at %d in a region of %d", n, off, len(mr.buf))
	}
	if err := checkAccess(access, mr.local); err != nil {
		return 0, err
	}
	mr.mu.Lock()
	defer mr.mu.Unlock()
	if mr.state == mrGone {
		return 0, ErrClosed
	}
	mr.closeWindow()
	mr.window, mr.rights = mr.buf[off:off+n], access.remote()
	mr.stag = mr.pd.ulp.dev.stags.insert(mr)
	mr.state = mrOpen
	mr.pins.Add(-shut)
	return mr.stag, nil
}

// Deregister ends the registration. It fails with ErrInUse while posted work
// requests name the region.
func (mr *MR) Deregister() error {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	if mr.state == mrGone {
		return nil
	}
	if !mr.refs.CompareAndSwap(0, gone) {
		return fmt.Errorf("verbs: deregister memory that %d posted work requests name: %w", mr.refs.Load(), ErrInUse)
	}
	mr.closeWindow()
	mr.state = mrGone
	mr.pd.ulp.dev.prm.give(&mr.charge)
	mr.pd.leave()
	return nil
}

// acquire is the one place where a peer's access to memory is decided (RFC
// 5042 sections 6.1.1 and 6.2.1, RFC 5040 section 7.2). n is not 0.
func (d *Device) acquire(pd *PD, stag uint32, to uint64, n uint32, need rdmap.Access) ([]byte, rdmap.Pin, rdmap.Fault) {
	mr := d.stags.find(stag)
	if mr == nil {
		return nil, nil, rdmap.FaultInvalidSTag
	}
	if mr.pins.Add(1) <= 0 || mr.stag != stag {
		mr.pins.Add(-1)
		return nil, nil, rdmap.FaultInvalidSTag
	}
	fault := rdmap.FaultNone
	switch end := to + uint64(n); {
	case mr.pd != pd:
		fault = rdmap.FaultNotAssociated
	case end < to:
		fault = rdmap.FaultTOWrap
	case end > uint64(len(mr.window)):
		fault = rdmap.FaultBounds
	case mr.rights&need != need:
		fault = rdmap.FaultAccess
	default:
		return mr.window[to:end:end], (*pin)(mr), rdmap.FaultNone
	}
	mr.pins.Add(-1)
	return nil, nil, fault
}

// pin is a held access; it hides Unpin from the MR's own methods.
type pin MR

func (p *pin) Unpin() { p.pins.Add(-1) }

// claim keeps the region for a work request that names it. It fails when the
// region is deregistered.
func (mr *MR) claim() (rdmap.Pin, error) {
	if mr.refs.Add(1) <= 0 {
		mr.refs.Add(-1)
		return nil, errDeregistered
	}
	return (*ref)(mr), nil
}

var errDeregistered = fmt.Errorf("verbs: post a work request that names deregistered memory: %w", ErrClosed)

// ref is a work request's claim on local memory.
type ref MR

func (r *ref) Unpin() { r.refs.Add(-1) }

// invalidateRemote carries out a peer's Send with Invalidate on a queue pair of
// pd (RFC 5040 section 5.3).
func (d *Device) invalidateRemote(pd *PD, stag uint32) rdmap.Fault {
	mr := d.stags.find(stag)
	if mr == nil {
		return rdmap.FaultInvalidSTag
	}
	mr.mu.Lock()
	defer mr.mu.Unlock()
	switch {
	case mr.state != mrOpen || mr.stag != stag:
		return rdmap.FaultInvalidSTag
	case mr.pd != pd, mr.rights == 0:
		return rdmap.FaultCannotInvalidate
	}
	mr.closeWindow()
	return rdmap.FaultNone
}
