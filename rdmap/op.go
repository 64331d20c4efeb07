package rdmap

// OpLocal is the kind of an operation that is executed in send queue order and
// never sent on the wire, where opcodes have 4 bits: binding a window, for example,
// or invalidating an STag of one's own. See Upper.Local.
const OpLocal Opcode = 0xf0

// Op is one element of the send queue. Kind is OpSend and its variants,
// OpWrite, OpReadRequest, OpImmediate, OpImmediateSE, OpAtomicRequest or
// OpLocal.
type Op struct {
	Kind     Opcode
	Signaled bool
	Fence    bool // wait until all earlier Reads and Atomics are complete
	Volatile bool // the source may change while it is sent: it is copied if the LLP computes a checksum
	ID       uint64
	SGL      [][]byte // source, or sink of a Read; with room for Config.MaxSGE pieces
	Ref      []Pin    // likewise; released by the Upper when the operation is done
	Len      uint32   // bytes in all

	STag    uint32 // remote, or to be invalidated at the peer for the Send kinds
	TO      uint64 // remote
	Imm     uint64
	Atomic  AtomicRequest // ID, STag and TO are filled in when it is sent
	Orig    uint64        // result of an atomic
	Local   any           // OpLocal: the Upper's description; a pointer, so that posting allocates nothing
	private []byte        // storage of inline data, kept from one use of the slot to the next
	done    bool          // a Read or Atomic has been answered
	answer  uint32        // what its response names: a Read's sink STag, made for it alone, or an Atomic's identifier
	err     error         // of an OpLocal that failed
}

// reset readies a slot of the ring for its next use.
func (o *Op) reset() { *o = Op{SGL: o.SGL[:0], Ref: o.Ref[:0], private: o.private[:0]} }

// pieces is room for short lists beside what they are part of.
type pieces struct {
	sgl [inlineSGE][]byte
	ref [inlineSGE]Pin
}

func newOp(sges int) *Op {
	if sges > inlineSGE {
		o := new(Op)
		o.SGL, o.Ref = make([][]byte, 0, sges), make([]Pin, 0, sges)
		return o
	}
	o := new(struct {
		Op
		pieces
	})
	o.SGL, o.Ref = o.sgl[:0], o.ref[:0]
	return &o.Op
}

// forget releases memory when the operation has been reported: the slot may
// stay unused for long.
func (o *Op) forget() {
	clear(o.SGL)
	o.SGL, o.Ref = o.SGL[:0], o.Ref[:0]
	if cap(o.private) > maxInlineKept {
		o.private = nil
	}
}

// CopyInline replaces the operation's source by a copy of it, so that the
// caller's memory is free when the post returns.
func (o *Op) CopyInline() {
	for i, b := range o.SGL {
		o.private = append(o.private, b...)
		o.SGL[i] = nil
	}
	o.SGL = append(o.SGL[:0], o.private)
}

// SetInline has a copy of b as the operation's source.
func (o *Op) SetInline(b []byte) {
	o.private = append(o.private, b...)
	o.SGL = append(o.SGL[:0], o.private)
}

// waits reports whether the operation needs a response and has none yet.
func (o *Op) waits() bool { return (o.Kind == OpReadRequest || o.Kind == OpAtomicRequest) && !o.done }

// sendRing is the send queue: operations between head and tail, of which those
// before next have been handed to the sender.
type sendRing struct {
	slots            []*Op
	max              int
	sges             int // of each
	head, next, tail uint64
}

func (r *sendRing) at(i uint64) *Op { return r.slots[i%uint64(len(r.slots))] }

// reserve returns the slot at tail, growing the ring if need be; nil: full.
func (r *sendRing) reserve() *Op {
	used := int(r.tail - r.head)
	if used >= r.max {
		return nil
	}
	if used == len(r.slots) {
		r.grow()
	}
	op := r.at(r.tail)
	op.reset()
	return op
}

func (r *sendRing) grow() {
	old := r.slots
	n := max(initialRing, 2*len(old))
	if n > r.max {
		n = r.max
	}
	r.slots = make([]*Op, n)
	for i := r.head; i < r.tail; i++ {
		r.slots[i%uint64(n)] = old[i%uint64(len(old))]
	}
	for i := range r.slots {
		if r.slots[i] == nil {
			r.slots[i] = newOp(r.sges)
		}
	}
}
