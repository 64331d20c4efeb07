package rdmap

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/ironwarp/ironwarp/ddp"
)

// readRequest queues the peer's Read. Its memory is checked now, so that the
// fault names the request, and again when it is sent.
func (s *Stream) readRequest(u ddp.Untagged, p []byte) error {
	r, ok := ParseReadRequest(p)
	if !ok {
		return ddp.Faultf(ddp.LayerRDMA, TypeRemoteOperation, CodeUnspecified, u, "Read Request header of %d bytes", len(p))
	}
	if r.Size > 0 { // RFC 5040 section 7.2: a zero-length Read needs no valid STag
		_, pin, fault := s.up.Acquire(r.SourceSTag, r.SourceTO, r.Size, RemoteRead)
		if fault != FaultNone {
			return requestFault(fault, u, p, "RDMA Read", r.SourceSTag)
		}
		pin.Unpin()
	} else if err := s.up.Slow(SlowRead); err != nil {
		return err
	}
	resp := response{read: r}
	copy(resp.header[:], u)
	return s.queueResponse(u, resp)
}

func requestFault(fault Fault, u ddp.Untagged, header []byte, what string, stag uint32) error {
	layer, typ, code := fault.remote()
	return quote(ddp.Faultf(layer, typ, code, u, "%s of STag %#08x: %v", what, stag, fault), header)
}

// quote makes the Terminate for e quote a Read Request header (RFC 5040 section
// 7.1 rule 3). Figure 10 narrows that to Remote Protection Errors. It also asks
// for the header of a Send with Invalidate, but section 4.8 has room only for a Read
// Request's, and section 7.1 rule 2 forbids another.
func quote(e *ddp.Error, header []byte) *ddp.Error {
	if len(header) == ReadRequestLen {
		e.Upper = append([]byte(nil), header...)
	}
	return e
}

// queueResponse enters what we owe the peer into the IRRQ, whose depth the peer
// knows (RFC 5040 section 6.1). A request beyond it finds no buffer on queue 1:
// DDP refuses it before it is delivered to RDMAP, so the Terminate quotes no RDMAP
// header (RFC 5040 section 7.1 rule 3 and Figure 10).
func (s *Stream) queueResponse(u ddp.Untagged, r response) error {
	s.mu.Lock()
	full := s.isFullLocked()
	if !full {
		s.irrq.Push(r)
	}
	s.mu.Unlock()
	if full {
		return s.irrqFull(u)
	}
	s.rx.kick = true
	return nil
}

func (s *Stream) irrqFull(u ddp.Untagged) error {
	return ddp.Faultf(ddp.LayerDDP, ddp.TypeUntagged, ddp.CodeUntaggedNoBuffer, u, "more than %d RDMA Reads and Atomics at once", s.ird)
}

// atomicRequest executes the peer's Atomic (RFC 7306 section 5). The memory
// is changed by the machine's own atomic instructions, so it is atomic with respect to
// every stream and every local user of sync/atomic.
func (s *Stream) atomicRequest(u ddp.Untagged, p []byte) error {
	a, ok := ParseAtomicRequest(p)
	if !ok || a.Op != AtomicFetchAdd && a.Op != AtomicCmpSwap {
		return ddp.Faultf(ddp.LayerRDMA, TypeRemoteOperation, CodeUnexpectedOpcode, u, "Atomic Request of %d bytes, operation %d", len(p), a.Op)
	}
	s.mu.Lock()
	full := s.isFullLocked()
	s.mu.Unlock()
	if full {
		return s.irrqFull(u)
	}
	buf, pin, fault := s.up.Acquire(a.STag, a.TO, 8, RemoteAtomic)
	if fault != FaultNone {
		return requestFault(fault, u, nil, "Atomic", a.STag)
	}
	addr := unsafe.Pointer(unsafe.SliceData(buf))
	if uintptr(addr)%8 != 0 {
		pin.Unpin()
		return ddp.Faultf(ddp.LayerRDMA, TypeRemoteOperation, CodeCatastrophicStream, u, "Atomic of STag %#08x at %d: not 64-bit aligned", a.STag, a.TO)
	}
	old := a.carryOut((*uint64)(addr))
	pin.Unpin()
	return s.queueResponse(u, response{atomic: true, resp: AtomicResponse{ID: a.ID, Original: old}})
}

// carryOut applies the operation to word and returns its old value. A plain addition, and
// an operation that changes nothing, never has to be retried, however busy others keep
// the word.
func (a AtomicRequest) carryOut(word *uint64) (old uint64) {
	if a.Op == AtomicFetchAdd && a.AddSwapMask&^(1<<63) == 0 {
		return atomic.AddUint64(word, a.AddSwap) - a.AddSwap
	}
	for {
		old = atomic.LoadUint64(word)
		if next := a.Apply(old); next == old || atomic.CompareAndSwapUint64(word, old, next) {
			return old
		}
	}
}

func (s *Stream) atomicResponse(u ddp.Untagged, p []byte) error {
	a, ok := ParseAtomicResponse(p)
	s.mu.Lock()
	due := ok && s.reads.Len() > 0 && s.reads.At(0).op.Kind == OpAtomicRequest && s.reads.At(0).op.answer == a.ID
	if due {
		op := s.reads.At(0).op
		op.Orig = a.Original
		if len(op.SGL) > 0 && len(op.SGL[0]) >= 8 {
			binary.NativeEndian.PutUint64(op.SGL[0], a.Original)
		}
	}
	s.mu.Unlock()
	if !due {
		return ddp.Faultf(ddp.LayerRDMA, TypeRemoteOperation, CodeUnexpectedOpcode, u, "Atomic Response %d that no Atomic awaits", a.ID)
	}
	s.answered()
	return nil
}
