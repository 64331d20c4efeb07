// Package vhosttest is a vhost-user front end for tests: it plays both the virtual machine
// monitor and the guest's driver, over memory of its own, and can be told to break every
// rule. It shares no code with the back end.
package vhosttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

var le = binary.LittleEndian

// Messages that a test may send by hand.
const (
	GetFeatures         = 1
	SetFeatures         = 2
	SetOwner            = 3
	SetMemTable         = 5
	SetVringNum         = 8
	SetVringAddr        = 9
	SetVringBase        = 10
	GetVringBase        = 11
	SetVringKick        = 12
	SetVringCall        = 13
	GetProtocolFeatures = 15
	SetProtocolFeatures = 16
	GetQueueNum         = 17
	SetVringEnable      = 18
	SetBackendReqFD     = 21
	GetConfig           = 24
	SetConfig           = 25
	GetInflightFD       = 31
	SetInflightFD       = 32
	GetMaxMemSlots      = 36
	AddMemReg           = 37
	RemMemReg           = 38
)

// Features of the device.
const (
	FeatureReadOnly   = 1 << 5
	FeatureFlush      = 1 << 9
	FeatureConfigWCE  = 1 << 11
	FeatureIndirect   = 1 << 28
	FeatureEventIndex = 1 << 29
	FeatureProtocol   = 1 << 30
	FeaturePacked     = 1 << 34
)

// protocol are all features of vhost-user that the back end has.
const protocol = 1<<0 | 1<<3 | 1<<5 | 1<<9 | 1<<12 | 1<<13 | 1<<15

// Options say how a front end behaves.
type Options struct {
	Features uint64 // chosen, beside what is always
	Queues   int    // 0: one
	Size     uint16 // descriptors of a queue; 0: 128
	Segment  int    // the longest part of data in bytes; 0: all in one
	Indirect bool   // requests are tables of descriptors
	Memory   int64  // bytes; 0: 64 MiB
	Unsealed bool   // the memory may be truncated
	NoLog    bool   // no log of requests under way
	Slots    bool   // memory is added region by region
	InPlace  bool   // data stays in the guest's memory: of a request's Data only the length counts
}

const (
	guestBase = 1 << 32     // of the second region: right behind the first
	userBase  = 0x7f0000000 // of the first; the second is far away
	userApart = 1 << 40
)

// Frontend is a front end with its guest.
type Frontend struct {
	Conn   *net.UnixConn
	Opts   Options
	Queues []*Queue
	Memory *Memory
	log    int // descriptor of the log, -1: none
	logMsg []byte
	back   *net.UnixConn
	closed bool
}

// Memory is a guest's memory, in two regions of one file that lie apart there.
type Memory struct {
	FD   int
	Mem  []byte
	next int64
}

// Alloc reserves n bytes, and returns them and their guest's address.
func (m *Memory) Alloc(n int) (addr uint64, b []byte) {
	m.next = (m.next + 63) &^ 63
	at := m.next
	m.next += int64(n)
	return m.Guest(at), m.Mem[at:m.next]
}

// Guest is the guest's address of an offset in the memory.
func (m *Memory) Guest(at int64) uint64 { return uint64(guestBase - int64(len(m.Mem))/2 + at) }

// user is the front end's address of a guest's.
func (m *Memory) user(guest uint64) uint64 {
	at := guest - m.Guest(0)
	if half := uint64(len(m.Mem) / 2); at >= half {
		return userBase + userApart + at - half
	}
	return userBase + at
}

// At is the memory at a guest's address.
func (m *Memory) At(guest uint64, n int) []byte {
	at := guest - m.Guest(0)
	return m.Mem[at : at+uint64(n)]
}

func newMemory(size int64, seal bool) (*Memory, error) {
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		return nil, err
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if !seal {
		seals = unix.F_SEAL_SEAL
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return &Memory{FD: fd, Mem: mem, next: size / 4}, err
}

// New makes a front end that is not connected. It fails without memory.
func New(o Options) (*Frontend, error) {
	if o.Queues == 0 {
		o.Queues = 1
	}
	if o.Size == 0 {
		o.Size = 128
	}
	if o.Memory == 0 {
		o.Memory = 64 << 20
	}
	m, err := newMemory(o.Memory, !o.Unsealed)
	if err != nil {
		return nil, err
	}
	f := &Frontend{Opts: o, Memory: m, log: -1}
	for i := range o.Queues {
		q, err := newQueue(f, i)
		if err != nil {
			return nil, err
		}
		f.Queues = append(f.Queues, q)
	}
	return f, nil
}

// Close ends the connection and frees everything, the first time that it is called: later its
// descriptors are somebody else's.
func (f *Frontend) Close() {
	if f.closed {
		return
	}
	f.closed = true
	f.Hangup()
	for _, q := range f.Queues {
		q.close()
	}
	if f.log >= 0 {
		unix.Close(f.log)
	}
	unix.Munmap(f.Memory.Mem)
	unix.Close(f.Memory.FD)
}

// Hangup ends the connection only.
func (f *Frontend) Hangup() {
	if f.Conn != nil {
		f.Conn.Close()
	}
	if f.back != nil {
		f.back.Close()
	}
}

// Connect connects, or connects again, and starts the queues. It fails where the back end
// hangs up.
func (f *Frontend) Connect(path string) error {
	if err := f.Dial(path); err != nil {
		return err
	}
	return f.Start()
}

// Dial connects without a word. It fails if nobody listens.
func (f *Frontend) Dial(path string) error {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	f.Conn = c
	return err
}

// Start says all that a monitor says when its guest's driver is ready. It fails where the
// back end hangs up, or refuses something.
func (f *Frontend) Start() error {
	features, err := f.AskU64(GetFeatures)
	if err != nil {
		return err
	}
	chosen := f.Opts.Features | 1<<32 | FeatureProtocol
	if chosen&^features != 0 {
		return fmt.Errorf("features %#x are not offered", chosen&^features)
	}
	if p, err := f.AskU64(GetProtocolFeatures); err != nil || p&protocol != protocol {
		return fmt.Errorf("features of the protocol %#x: %w", p, err)
	}
	if err := f.Send(SetProtocolFeatures, 0, le.AppendUint64(nil, protocol)); err != nil {
		return err
	}
	if n, err := f.AskU64(GetQueueNum); err != nil || int(n) < f.Opts.Queues {
		return fmt.Errorf("%d queues: %w", n, err)
	}
	if err := errors.Join(f.setBackend(), f.Ack(SetOwner, nil), f.Ack(SetFeatures, le.AppendUint64(nil, chosen)), f.shareMemory()); err != nil {
		return err
	}
	if !f.Opts.NoLog {
		if err := f.setLog(); err != nil {
			return err
		}
	}
	for _, q := range f.Queues {
		if err := q.start(); err != nil {
			return err
		}
	}
	return nil
}

// place is a region's description.
func (f *Frontend) place(i int) []byte {
	half := uint64(len(f.Memory.Mem) / 2)
	b := le.AppendUint64(nil, f.Memory.Guest(int64(half)*int64(i)))
	b = le.AppendUint64(b, half)
	b = le.AppendUint64(b, userBase+userApart*uint64(i))
	return le.AppendUint64(b, half*uint64(i))
}

func (f *Frontend) shareMemory() error {
	if f.Opts.Slots {
		for i := range 2 {
			if err := f.Ack(AddMemReg, append(make([]byte, 8), f.place(i)...), f.Memory.FD); err != nil {
				return err
			}
		}
		return nil
	}
	return f.Ack(SetMemTable, f.MemTable(), f.Memory.FD, f.Memory.FD)
}

// MemTable is the payload of SET_MEM_TABLE.
func (f *Frontend) MemTable() []byte {
	return append(append(le.AppendUint64(nil, 2), f.place(0)...), f.place(1)...)
}

// AddRegion and RemoveRegion change the memory meanwhile. They fail where the back end refuses.
func (f *Frontend) AddRegion(guest, user uint64) error {
	return f.Ack(AddMemReg, region(guest, user), f.Memory.FD)
}

// RemoveRegion removes what AddRegion added. It fails where the back end refuses.
func (f *Frontend) RemoveRegion(guest, user uint64) error {
	return f.Ack(RemMemReg, region(guest, user))
}

func region(guest, user uint64) []byte {
	b := make([]byte, 8)
	for _, v := range []uint64{guest, 1 << 20, user, 0} {
		b = le.AppendUint64(b, v)
	}
	return b
}

// setLog gets a log, or gives the one it has back.
func (f *Frontend) setLog() error {
	if f.log < 0 {
		p := make([]byte, 24)
		le.PutUint16(p[16:], uint16(f.Opts.Queues))
		le.PutUint16(p[18:], f.Opts.Size)
		if err := f.Send(GetInflightFD, 0, p); err != nil {
			return err
		}
		p, fds, err := f.Receive(GetInflightFD)
		if err != nil || len(fds) != 1 {
			return fmt.Errorf("a log with %d descriptors: %w", len(fds), err)
		}
		f.log, f.logMsg = fds[0], p
	}
	return f.Ack(SetInflightFD, f.logMsg, f.log)
}

func (f *Frontend) setBackend() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fds[1])
	if f.back, err = unixConn(fds[0]); err != nil {
		return err
	}
	return f.Ack(SetBackendReqFD, nil, fds[1])
}

// Backend receives the kind of the next request of the back end's. It fails at the
// connection's end.
func (f *Frontend) Backend() (kind uint32, err error) {
	var b [12]byte
	_, err = io.ReadFull(f.back, b[:])
	return le.Uint32(b[:]), err
}

// Header is a message's.
func Header(kind, flags uint32, size int) []byte {
	b := le.AppendUint32(nil, kind)
	b = le.AppendUint32(b, 1|flags)
	return le.AppendUint32(b, uint32(size))
}

// Send sends a message. It fails if the back end has hung up.
func (f *Frontend) Send(kind, flags uint32, payload []byte, fds ...int) error {
	return f.SendRaw(append(Header(kind, flags, len(payload)), payload...), fds...)
}

// SendRaw sends any bytes. It fails if the back end has hung up.
func (f *Frontend) SendRaw(b []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := f.Conn.WriteMsgUnix(b, oob, nil)
	return err
}

// Receive receives a reply. It fails if it is one to another message.
func (f *Frontend) Receive(kind uint32) (payload []byte, fds []int, err error) {
	var h [12]byte
	oob := make([]byte, 128)
	n, oobn, _, _, err := f.Conn.ReadMsgUnix(h[:], oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil {
		_, err = io.ReadFull(f.Conn, h[n:])
	}
	if err != nil {
		return nil, nil, err
	}
	if le.Uint32(h[:]) != kind || le.Uint32(h[4:]) != 5 || le.Uint32(h[8:]) > 512 {
		return nil, nil, fmt.Errorf("reply % x to message %d", h, kind)
	}
	all, err := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range all {
		fds, err = unix.ParseUnixRights(&all[i])
	}
	payload = make([]byte, le.Uint32(h[8:]))
	_, rerr := io.ReadFull(f.Conn, payload)
	return payload, fds, errors.Join(err, rerr)
}

// Ask sends a message that is answered. It fails if the back end hangs up.
func (f *Frontend) Ask(kind uint32, payload []byte) ([]byte, error) {
	if err := f.Send(kind, 0, payload); err != nil {
		return nil, err
	}
	p, _, err := f.Receive(kind)
	return p, err
}

// AskU64 is Ask for a number. It fails as Ask does, and for what is none.
func (f *Frontend) AskU64(kind uint32) (uint64, error) {
	p, err := f.Ask(kind, nil)
	if err != nil || len(p) != 8 {
		return 0, fmt.Errorf("%d bytes in reply to message %d: %w", len(p), kind, err)
	}
	return le.Uint64(p), nil
}

// ErrRefused is a message's that the back end refuses.
var ErrRefused = errors.New("refused")

// Ack sends a message that is acknowledged. It fails with ErrRefused, or if the back end
// hangs up.
func (f *Frontend) Ack(kind uint32, payload []byte, fds ...int) error {
	if err := f.Send(kind, 8, payload, fds...); err != nil {
		return err
	}
	p, _, err := f.Receive(kind)
	if err == nil && le.Uint64(p) != 0 {
		err = ErrRefused
	}
	if err != nil {
		err = fmt.Errorf("message %d: %w", kind, err)
	}
	return err
}

// Config returns n bytes of the configuration. It fails if the back end hangs up.
func (f *Frontend) Config(off, n uint32) ([]byte, error) {
	p := le.AppendUint32(nil, off)
	p = le.AppendUint32(p, n)
	p = le.AppendUint32(p, 0)
	p, err := f.Ask(GetConfig, append(p, make([]byte, n)...))
	if err != nil || len(p) != 12+int(n) {
		return nil, fmt.Errorf("%d bytes of configuration: %w", len(p), err)
	}
	return p[12:], nil
}

// SetWriteBack sets whether completed writes may be lost. It fails where the back end refuses.
func (f *Frontend) SetWriteBack(on bool) error {
	p := le.AppendUint32(nil, 32)
	p = le.AppendUint32(p, 1)
	p = le.AppendUint32(p, 0)
	b := byte(0)
	if on {
		b = 1
	}
	return f.Ack(SetConfig, append(p, b))
}

// Log is the descriptor of the log of requests under way, -1 if there is none.
func (f *Frontend) Log() int { return f.log }
