package iscsi

import (
	"errors"
	"iter"
)

// Stream moves whole PDUs before a connection is assisted by a Datamover: those of its login.
type Stream interface {
	// ReadPDU waits for the next PDU. data is valid until the next call. It fails if the data
	// segment is longer than LoginDataSegment, and with the error of the connection.
	ReadPDU() (h BHS, data []byte, err error)
	// WritePDU sends a PDU. It fails with the error of the connection.
	WritePDU(h *BHS, data []byte) error
}

// Datamover moves PDUs and data for the target's end of one connection in full feature phase, in
// the words of RFC 5047 section 8. Below it may be TCP, where data travel in Data-In and Data-Out
// PDUs, or RDMA, where there are none of these.
//
// SendControl, PutData and GetData queue, in the order of their calls, and do not block: the caller
// holds the lock under which it numbers the PDUs. Flush starts what was queued.
type Datamover interface {
	// SendControl sends a control-type PDU (section 8.1).
	SendControl(o *Out)
	// PutData sends data as the Data-In PDUs that o.Pieces describes, from o.From up to o.To
	// (section 8.2). The header is that of the last of them all; a mover that sends no Data-In PDUs
	// gets no status in it, and sends all of the data.
	PutData(o *Out)
	// GetData fetches the data of an R2T into g.Into (section 8.3).
	GetData(g *Get)
	// Flush starts what was queued. It does not block.
	Flush()
	// NoticeKeyValues says what was agreed during login, before the initiator is told that it is
	// over, and has what the connection needs from then on allocated (sections 8.5 and 8.8). declared
	// is the longest data segment that the initiator may send. It fails if resources are short.
	NoticeKeyValues(v *Values, declared uint32) error
	// NoticeSegment says that the initiator takes data segments of n bytes from now on.
	NoticeSegment(n uint32)
	// Segment is the longest data segment that the initiator takes, in a PDU that SendControl sends.
	Segment() int
	// DeallocateTaskResources forgets the Gets of a task that ends before its data have come
	// (section 8.9). placing says that data of one of them are arriving in its buffer, which is
	// not to be used for anything else until DataCompletionNotify has given that Get back. A
	// mover may wait for them instead. Run's goroutine calls it, or what follows it.
	DeallocateTaskResources(itt uint32) (placing bool)
	// Run receives until the connection ends, and then returns why (sections 8.6 and 9.2). No data
	// move any more, and no call of the Upper is in progress.
	// Where errors in PDUs are recovered from, data that are damaged do not end it.
	Run(u Upper) error
	// Wake has Run call IdleNotify soon, if it waits for the initiator. It does not block.
	Wake()
	// ConnectionTerminate ends the connection (section 8.7): Run returns soon.
	ConnectionTerminate()
}

// Abandoner is a Datamover on which data may come too late: at ErrorRecoveryLevel 1 and above.
type Abandoner interface {
	// Abandon forgets a Get whose data do not come, if none of them are arriving at this moment. It
	// reports whether it has done so. Run's goroutine calls it.
	Abandon(g *Get) bool
}

// Registrar is a Datamover that moves data only from and to memory that was registered with it.
type Registrar interface {
	// Register registers memory for data, and returns what Out.Memory and Get.Memory are to be. It
	// fails if resources are short.
	Register(b []byte) (memory any, err error)
	// Deregister ends a registration. No data of that memory move any more.
	Deregister(memory any)
}

// Remote is where an initiator has the data of a command, for a Datamover with RDMA: the Remote Mapping
// of RFC 7145 section 2.1. It comes with the command, and whoever has the command gives it back with what
// is to be moved for it, and with its response. Only the Datamover looks into it.
type Remote struct {
	Read, Write         bool // the tag and base are valid
	ReadTag, WriteTag   uint32
	ReadBase, WriteBase uint64 // of byte 0 of the data
}

// Upper is what a Datamover calls (RFC 5047 section 9).
type Upper interface {
	// ControlNotify passes a control-type PDU that has arrived: all but solicited Data-Out. An
	// error ends the connection. Run's goroutine calls it, and goes on when it returns.
	ControlNotify(p *Incoming) error
	// SentNotify gives back an Out whose bytes are no longer needed. It does not block.
	SentNotify(o *Out)
	// DataCompletionNotify gives back a Get (section 9.3). whole is false if the initiator did not
	// send what it was asked for. Run's goroutine calls it.
	DataCompletionNotify(g *Get, whole bool)
	// DigestNotify says that a PDU was dropped, since its data do not match their digest (RFC 7143
	// section 7.8). A PDU whose data ControlNotify has read is not among them. Run's goroutine calls it.
	DigestNotify(h *BHS)
	// IdleNotify announces that the mover is going to wait for the initiator.
	IdleNotify()
}

// ErrLogout is what ControlNotify returns after the answer to a Logout: the connection ends in order.
var ErrLogout = errors.New("iscsi: the initiator logged out")

// Incoming is a PDU that has arrived. It is valid during ControlNotify.
type Incoming struct {
	BHS    BHS
	AHS    []byte
	Remote Remote // of a SCSI Command
	// ReadData reads the first bytes of the data segment into dst and finishes the segment, whose
	// digest it verifies. It is called at most once; what is not read is dropped. It fails with
	// the error of the connection, and with ErrDigest.
	ReadData func(dst []byte) error
}

// Out is something to be sent. It belongs to the Datamover from SendControl or PutData until
// SentNotify.
type Out struct {
	BHS    BHS
	Data   []byte
	Memory any    // with PutData, of a Registrar: Data is the beginning of that
	Remote Remote // of the command that the data or the response are of
	Task   any    // the Upper's

	Pieces   Pieces // with PutData: how Data are divided
	From, To uint32 // the numbers of those to be sent, To excluded

	Input  bool // the Datamover's, like those below
	Queued bool
	next   *Out
}

// OutQueue has Outs in the order in which they were pushed. It links them, and so allocates nothing: an
// Out is in one queue at a time. The zero value is empty. A Datamover uses it.
type OutQueue struct{ first, last *Out }

// Empty reports whether there is none.
func (q *OutQueue) Empty() bool { return q.first == nil }

// Push adds an Out behind the others.
func (q *OutQueue) Push(o *Out) {
	o.next = nil
	if q.last == nil {
		q.first = o
	} else {
		q.last.next = o
	}
	q.last = o
}

// Pop takes the first one; nil if there is none.
func (q *OutQueue) Pop() *Out {
	o := q.first
	if o == nil {
		return nil
	}
	if q.first = o.next; q.first == nil {
		q.last = nil
	}
	o.next = nil
	return o
}

// Take takes all of them.
func (q *OutQueue) Take() OutQueue {
	all := *q
	*q = OutQueue{}
	return all
}

// All are those in the queue, which does not change meanwhile.
func (q *OutQueue) All() iter.Seq[*Out] {
	return func(yield func(*Out) bool) {
		for o := q.first; o != nil && yield(o); o = o.next {
		}
	}
}

// Get is data to be fetched. It belongs to the Datamover from GetData until DataCompletionNotify or
// DeallocateTaskResources.
type Get struct {
	Out  Out // the R2T; its transfer tag is the Datamover's
	R2T  R2T
	Into []byte
	Task any // the Upper's

	Memory any // of a Registrar: Into is at R2T.Offset of that
	Remote Remote

	Sequence Sequence // the Datamover's
}
