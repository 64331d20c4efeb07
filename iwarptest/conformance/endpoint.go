package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// Connect brings up one more RDMAP Stream and returns its two ends, of which
// either may send: where the lower layer keeps the responder silent until the
// initiator has spoken (RFC 5044 section 7.1.2 rule 4) Connect makes the initiator
// speak, for example with an RDMA Write of no bytes. All streams of one Connect should join the
// same two RNICs, all memory of an RNIC one protection domain: then the suite
// also shows what streams share and that the errors of one do not touch another.
// Connect fails by t.Fatal; what it allocates is freed by
// t.Cleanup, before which the ends are still asked for their memory.
type Connect func(t testing.TB) (a, b Endpoint)

// Endpoint is one end of one RDMAP Stream, as a consumer of it sees it. The
// suite calls its methods from one goroutine. An error of a method means that
// the end itself has failed; completions and End report what went wrong on the
// stream.
type Endpoint interface {
	// Can reports whether the end has a feature.
	Can(Feature) bool

	// Limits returns the end's limits.
	Limits() Limits

	// Region allocates n bytes of memory and registers them. Guard bytes
	// before and after them belong to the allocation, but not to the region.
	Region(n int, access Access) (Region, error)

	// Store and Load are the local consumer's access to the memory of a region,
	// also after Invalidate and after the end of the stream. off runs from
	// -Guard to r.Len+Guard.
	Store(r Region, off int, p []byte) error
	Load(r Region, off, n int) ([]byte, error)

	// Invalidate makes the region's STag unusable for the peer. Where that
	// takes a deregistration, it is one.
	Invalidate(r Region) error

	// PostRecv posts a receive. It takes Immediate Data, too.
	PostRecv(id uint64, sgl []SGE) error

	// PostSend posts an operation.
	PostSend(WR) error

	// Completion waits for the next completion, of sends and receives in one
	// sequence. When the stream has ended and all completions have been taken
	// it returns io.EOF.
	Completion(ctx context.Context) (WC, error)

	// Close starts a graceful end: what is posted is still sent. It does not
	// wait.
	Close() error

	// Abort ends the stream at once, without a Terminate.
	Abort() error

	// End waits for the end of the stream and returns how it ended. It fails with ctx's
	// error.
	End(ctx context.Context) (End, error)
}

// Guard is how many bytes before and after each region Load and Store reach.
const Guard = 64

// Feature is a set of features that not every RNIC has. Without them an Endpoint has
// what RFC 5040 demands: Send, Write and Read with one scatter/gather element.
type Feature uint32

// The features.
const (
	// SendInvalidate is Send with Invalidate, sent and obeyed.
	SendInvalidate Feature = 1 << iota
	// SGL is scatter/gather lists of Sends, Writes and receives.
	SGL
	// ReadSGL is scatter lists of Reads.
	ReadSGL
	// Inline is sends whose source is free when the post returns.
	Inline
	// Fence holds an operation up until earlier Reads are done.
	Fence
	// Atomics are those of RFC 7306 section 5, issued and served.
	Atomics
	// Immediate is Immediate Data (RFC 7306 section 6), sent and taken.
	Immediate
	// ForeignPD: Region can register memory that the stream must not
	// reach, with AccessForeign.
	ForeignPD
	// Reopen is Reopener.
	Reopen
	// FlushesReceives: the receives posted on an end are its own: the end
	// of the stream flushes those that are left. A shared receive queue keeps
	// them.
	FlushesReceives
	// SharedReceives: PostRecv serves all ends of the RNIC, and ends with
	// a completion where the message arrived.
	SharedReceives
	// Arming is Armer.
	Arming
	// Windows is Binder, with memory windows of type 2.
	Windows
	// LocalOps is Binder, with registration and invalidation in the send queue.
	LocalOps
	// InOrder: operations complete in the order of posting, as RFC 5040
	// section 5.5 rule 15 wants it. Without it Reads may complete after what was
	// posted behind them.
	InOrder
	// EmptyReads: a Read of no bytes is answered with no bytes, also when it
	// waits behind another.
	EmptyReads
	// ReadRights: Reads of memory without RemoteRead are refused.
	ReadRights
	// InvalidateChecks: a Send with Invalidate of what it can't invalidate
	// ends the stream.
	InvalidateChecks
	// ReportsSolicited and ReportsInvalidated: receives fill in
	// WC.Solicited and WC.Invalidated.
	ReportsSolicited
	ReportsInvalidated
	// ReportsEnd: End knows how the stream ended.
	ReportsEnd
	// Terminates: the end sends in a Terminate what RFC 5040 section 4.8
	// and RFC 5041 section 7.2 ask for. One without it may say anything, or
	// nothing.
	Terminates

	// All is every feature.
	All = 1<<iota - 1
)

var featureNames = []string{"Send with Invalidate", "scatter/gather lists", "scatter lists of Reads", "inline sends", "Fence", "Atomics",
	"Immediate Data", "a second protection domain", "fast registration", "receives of its own", "receives for all streams", "armed completion queues", "memory windows", "registration in the send queue", "completions in order", "an answer to Reads of no bytes behind others", "a check of the right to read", "an end to streams that invalidate what they can't", "to tell what is solicited",
	"to report what was invalidated", "to report how a stream ended", "Terminate codes of the RFCs"}

func (f Feature) String() string {
	var names []string
	for i, n := range featureNames {
		if f&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, ", ")
}

// Reopener is an Endpoint with the feature Reopen: fast registration.
type Reopener interface {
	// Reopen gives the memory of a region a new STag; the old one is unusable.
	Reopen(r Region, access Access) (Region, error)
}

// Armer is an Endpoint with the feature Arming: the wait for completions that
// are worth waking up for.
type Armer interface {
	// Arm chooses what the next Wait waits for: any completion, or one that is
	// solicited or in error.
	Arm(solicitedOnly bool) error
	// Wait waits for that, and takes no completion.
	Wait(ctx context.Context) error
}

// Binder is an Endpoint with the feature Windows, LocalOps or both: operations
// that are carried out in their turn of the send queue and send nothing. The STag
// that they open memory under is known when they are posted, so that a Send
// behind them can tell the peer.
type Binder interface {
	// Window allocates a memory window, to be named in PostBind.
	Window() (int, error)
	// PostBind posts an OpBind: window is to open the memory for access, for this
	// stream's peer alone. The region must have been made with AccessBind. It
	// returns what the peer is to name.
	PostBind(wr WR, window int, memory SGE, access Access) (Region, error)
	// PostRegister posts an OpRegister: the region gets a new STag, for that part
	// of it. It returns what the peer is to name.
	PostRegister(wr WR, memory SGE, access Access) (Region, error)
}

// Limits are sizes of an end.
type Limits struct {
	MaxSend, MaxRecv int // operations posted and not completed
	ORD              int // Reads and Atomics that the peer holds for this end at once, as negotiated
	SGEs             int // elements of a scatter/gather list
	Inline           int // bytes of an inline send
	MULPDU           int // bytes of a DDP segment with its header; 0: unknown
}

// Access is a set of rights on a region. A region may always be read locally.
type Access uint8

// The rights. RemoteWrite and RemoteAtomic come with LocalWrite.
const (
	LocalWrite Access = 1 << iota
	RemoteRead
	RemoteWrite
	RemoteAtomic
	// AccessForeign registers in another protection domain (feature ForeignPD).
	AccessForeign
	// AccessBind lets windows be bound to the region (feature Windows).
	AccessBind
)

// Region is registered memory.
type Region struct {
	ID   int    // the Endpoint's own name for it
	STag uint32 // steering tag
	TO   uint64 // tagged offset of the first byte: 0, or a virtual address
	Len  int    // bytes
}

// SGE is a piece of a region of this end.
type SGE struct {
	Region   Region
	Off, Len int // bytes
}

// Op is the kind of an operation or, in a WC, of a completion.
type Op uint8

// The operations. The last three occur in completions only, in place of
// OpFetchAdd and OpCmpSwap, and of receives.
const (
	OpSend Op = iota + 1
	OpWrite
	OpRead
	OpImmediate
	OpFetchAdd
	OpCmpSwap
	OpBind          // by Binder.PostBind
	OpRegister      // by Binder.PostRegister
	OpInvalidate    // of this end's own WR.Invalidate (feature LocalOps)
	OpAtomic        // FetchAdd or CmpSwap
	OpRecv          // a receive that a Send took
	OpRecvImmediate // a receive that Immediate Data took
)

func (o Op) String() string {
	if o < OpSend || o > OpRecvImmediate {
		return fmt.Sprintf("Op(%d)", uint8(o))
	}
	return [...]string{"Send", "Write", "Read", "Immediate Data", "FetchAdd", "CmpSwap", "bind", "registration", "local invalidate", "Atomic", "receive", "receive of Immediate Data"}[o-1]
}

// Flags modify an operation.
type Flags uint8

// The flags.
const (
	Signaled       Flags = 1 << iota // completes with a WC also when it succeeds
	Solicited                        // Send, Immediate: with Solicited Event
	WithInvalidate                   // Send: with Invalidate of WR.Invalidate
	Fenced                           // waits for earlier Reads and Atomics (feature Fence)
	FromInline                       // the source is free at once (feature Inline)
	More                             // a hint that more posts follow at once
)

// WR is an operation to be posted.
type WR struct {
	ID    uint64
	Op    Op
	Flags Flags
	SGL   []SGE // source; sink of a Read, or of an Atomic's 8 bytes

	STag uint32 // at the peer: Write, Read, Atomics
	TO   uint64

	Invalidate uint32 // the peer's STag, with WithInvalidate; this end's, OpInvalidate
	Imm        uint64 // OpImmediate

	Add, AddMask         uint64 // OpFetchAdd (RFC 7306 section 5.1.1)
	Swap, SwapMask       uint64 // OpCmpSwap (RFC 7306 section 5.1.2)
	Compare, CompareMask uint64
}

// Status is how an operation ended.
type Status uint8

// The statuses.
const (
	OK      Status = iota
	Failed         // it is what ended the stream, as far as the end knows
	Flushed        // the end of the stream caught it
)

func (s Status) String() string { return [...]string{"success", "failure", "flushed"}[s] }

// WC is a completion. Of one that is not OK, only ID and Status count.
type WC struct {
	ID          uint64
	Op          Op
	Status      Status
	Len         int    // OpRecv, OpRead: bytes
	Solicited   bool   // OpRecv, OpRecvImmediate
	Invalidated uint32 // OpRecv: the STag that the peer's Send has invalidated, 0 for none
	Imm         uint64 // OpRecvImmediate: the data; Atomics: the original value
}

// How is how a stream ended.
type How uint8

// The ways to end.
const (
	HowUnknown     How = iota // all that an end without ReportsEnd reports
	Graceful                  // closed by this end, or by both, with nothing lost
	PeerClosed                // closed by the peer, gracefully
	SentTerminate             // this end found a fault of the peer
	GotTerminate              // the peer found a fault of this end
	Aborted                   // by this end's Abort
	LocalFault                // an operation of this end's own send queue failed
	ConnectionLost            // the lower layer failed, or the peer vanished
)

func (h How) String() string {
	return [...]string{"in a way it can't report", "gracefully", "by the peer's graceful close", "with a Terminate sent", "with a Terminate received", "by its own abort", "by an operation of its own that failed", "with its connection lost"}[h]
}

// End is the end of a stream as one of its ends saw it.
type End struct {
	How   How
	Layer uint8 // of SentTerminate and GotTerminate (RFC 5040 section 4.8)
	Type  uint8
	Code  uint8
}

func (e End) String() string {
	if e.How == SentTerminate || e.How == GotTerminate {
		return fmt.Sprintf("%v of layer %d, type %d, code %#02x", e.How, e.Layer, e.Type, e.Code)
	}
	return e.How.String()
}
