package tcp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/tcp"
)

// upper records what a connection notifies it of, and asks for data once.
type upper struct {
	c         *tcp.Conn
	get       *iscsi.Get
	seen      []iscsi.Opcode
	data      []byte
	completed []bool
	sent      int
	damaged   int
}

func (u *upper) ControlNotify(p *iscsi.Incoming) error {
	u.seen = append(u.seen, p.BHS.Opcode())
	if u.get != nil && p.BHS.Opcode() == iscsi.OpCommand {
		u.c.GetData(u.get)
		u.get = nil
		u.c.Flush()
	}
	u.data = make([]byte, min(p.BHS.DataLen(), 7))
	return p.ReadData(u.data)
}

func (u *upper) SentNotify(*iscsi.Out) { u.sent++ }
func (u *upper) DataCompletionNotify(_ *iscsi.Get, whole bool) {
	u.completed = append(u.completed, whole)
}
func (u *upper) DigestNotify(*iscsi.BHS) { u.damaged++ }
func (u *upper) IdleNotify()             { u.c.Flush() }

// stream is a connection that has said all that it says.
type stream struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
}

func (s *stream) Read(p []byte) (int, error)  { return s.in.Read(p[:min(len(p), 1+len(p)%777)]) }
func (s *stream) Write(p []byte) (int, error) { return s.out.Write(p) }

func pdu(put func(h *iscsi.BHS), data []byte) []byte {
	var h iscsi.BHS
	put(&h)
	h.SetLengths(0, len(data))
	return append(append(h[:], data...), make([]byte, iscsi.Pad(len(data)))...)
}

// play has a connection receive said.
func play(t *testing.T, said []byte, g *iscsi.Get, digests bool) (*upper, error) {
	v := iscsi.DefaultValues()
	if digests {
		v[iscsi.KeyHeaderDigest], v[iscsi.KeyDataDigest] = iscsi.DigestCRC32C, iscsi.DigestCRC32C
	}
	return playWith(t, said, g, &v)
}

func playWith(t *testing.T, said []byte, g *iscsi.Get, v *iscsi.Values) (*upper, error) {
	near, far := net.Pipe()
	far.Close()
	c := tcp.NewConn(&stream{Conn: near, in: bytes.NewReader(said)})
	u := &upper{c: c, get: g}
	c.NoticeKeyValues(v, 4096)
	return u, c.Run(u)
}

func TestSolicitedDataArePlaced(t *testing.T) {
	k := iscsi.Command{Final: true, Write: true, ITT: 3, EDTL: 1000}
	d := iscsi.DataOut{Final: true, ITT: 3, TTT: 0, Offset: 512}
	nop := iscsi.NOP{Immediate: true, ITT: 4, TTT: iscsi.NoTag}
	payload := bytes.Repeat([]byte("x"), 487)
	said := append(pdu(k.Put, []byte("immediate")), pdu(d.Put, payload)...)
	said = append(said, pdu(d.Put, payload)...) // again: for nobody
	said = append(said, pdu(nop.PutOut, nil)...)
	into := make([]byte, 500)
	u, err := play(t, said, &iscsi.Get{R2T: iscsi.R2T{ITT: 3, Offset: 512, Length: 487}, Into: into[:487]}, false)
	if err != nil || len(u.completed) != 1 || !u.completed[0] || !bytes.Equal(into[:487], payload) || into[487] != 0 || len(u.seen) != 2 {
		t.Errorf("%v %+v", err, u)
	}
	d.Offset = 513
	said = append(pdu(k.Put, nil), pdu(d.Put, payload)...)
	clear(into)
	if u, err := play(t, said, &iscsi.Get{R2T: iscsi.R2T{ITT: 3, Offset: 512, Length: 487}, Into: into[:487]}, false); err != nil || len(u.completed) != 1 || u.completed[0] || into[0] != 0 {
		t.Errorf("%v %+v", err, u)
	}
}

// telling is an upper that has something to say whenever the connection is idle.
type telling struct {
	upper
	out iscsi.Out
}

func (u *telling) IdleNotify() {
	if !u.out.Queued {
		u.c.SendControl(&u.out)
	}
	u.c.Flush()
}

// pair returns a connection over TCP on loopback, its socket and the initiator's.
func pair(t *testing.T) (c *tcp.Conn, near, far *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	i, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	a, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c = tcp.NewConn(a)
	v := iscsi.DefaultValues()
	c.NoticeKeyValues(&v, 4096)
	return c, a.(*net.TCPConn), i.(*net.TCPConn)
}

// TestFlushBeforeRun: another connection of the session may want that sent which is queued for one that
// does not run yet. It waits.
func TestFlushBeforeRun(t *testing.T) {
	c, _, far := pair(t)
	c.SendControl(new(iscsi.Out))
	c.Flush()
	far.CloseWrite()
	u := &upper{c: c}
	if err := c.Run(u); err != nil || u.sent != 1 {
		t.Errorf("%v, %d given back", err, u.sent)
	}
}

// TestWakesThatMeet: a wake that is overtaken by another, which has been answered meanwhile, ends nothing.
func TestWakesThatMeet(t *testing.T) {
	_, near, far := pair(t)
	slow := &slowDeadline{TCPConn: near, begun: make(chan struct{}), on: make(chan struct{})}
	c := tcp.NewConn(slow)
	u := &counting{upper: upper{c: c}, idle: make(chan struct{}, 1)}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(u) }()
	idle := func() {
		t.Helper()
		select {
		case <-u.idle:
		case err := <-ended:
			t.Fatalf("the connection has ended: %v", err)
		}
	}
	idle()
	go c.Wake()
	<-slow.begun
	c.Wake()
	idle()
	close(slow.on)
	idle()
	far.CloseWrite()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// slowDeadline is a connection whose first read deadline is set when on is closed.
type slowDeadline struct {
	*net.TCPConn
	called    atomic.Bool
	begun, on chan struct{}
}

func (s *slowDeadline) SetReadDeadline(at time.Time) error {
	if !s.called.Swap(true) {
		close(s.begun)
		<-s.on
	}
	return s.TCPConn.SetReadDeadline(at)
}

// counting is an upper that says when it was idle.
type counting struct {
	upper
	idle chan struct{}
}

func (u *counting) IdleNotify() {
	select {
	case u.idle <- struct{}{}:
	default:
	}
}

// TestSendFailsWhileNothingIsReceived: what Run's goroutine sends before it waits may be what fails, and
// ends Run.
func TestSendFailsWhileNothingIsReceived(t *testing.T) {
	c, near, _ := pair(t)
	near.CloseWrite()
	u := &telling{upper: upper{c: c}}
	if err := c.Run(u); err == nil || u.sent != 1 {
		t.Errorf("%v, %d given back", err, u.sent)
	}
}

func TestLimitsAndDigests(t *testing.T) {
	nop := iscsi.NOP{Immediate: true, ITT: 4, TTT: iscsi.NoTag}
	if _, err := play(t, pdu(nop.PutOut, make([]byte, 4097)), nil, false); !errors.Is(err, iscsi.ErrFormat) {
		t.Error(err)
	}
	if _, err := play(t, append(pdu(nop.PutOut, nil), 1, 2, 3, 4), nil, true); !errors.Is(err, iscsi.ErrDigest) {
		t.Error(err)
	}
	if _, err := play(t, pdu(nop.PutOut, make([]byte, 9))[:50], nil, false); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

// signed adds the digests to PDUs that have none, and damages the data of one.
func signed(damaged int, pdus ...[]byte) (said []byte) {
	for i, p := range pdus {
		said = binary.LittleEndian.AppendUint32(append(said, p[:iscsi.BHSLen]...), crc32c.Checksum(p[:iscsi.BHSLen]))
		if data := p[iscsi.BHSLen:]; len(data) > 0 {
			sum := crc32c.Checksum(data)
			if i == damaged {
				sum++
			}
			said = binary.LittleEndian.AppendUint32(append(said, data...), sum)
		}
	}
	return said
}

// TestDamagedDataAreRecoveredFrom: at ErrorRecoveryLevel 1 damaged data are told of, whoever they are for, and those
// that were asked for are not whole: what is to be asked for again begins with them (RFC 7143 section 7.8).
func TestDamagedDataAreRecoveredFrom(t *testing.T) {
	k := iscsi.Command{Final: true, Write: true, ITT: 3, EDTL: 1000}
	d := iscsi.DataOut{ITT: 3, TTT: 0}
	e := iscsi.DataOut{Final: true, ITT: 3, TTT: 0, DataSN: 1, Offset: 400}
	nobody := iscsi.DataOut{Final: true, ITT: 4, TTT: 7}
	pdus := [][]byte{pdu(k.Put, nil), pdu(d.Put, make([]byte, 400)), pdu(e.Put, make([]byte, 600)), pdu(nobody.Put, make([]byte, 100))}
	v := iscsi.DefaultValues()
	v[iscsi.KeyHeaderDigest], v[iscsi.KeyDataDigest] = iscsi.DigestCRC32C, iscsi.DigestCRC32C
	for damaged, from := range map[int]uint32{1: 0, 2: 400, 3: 1000, -1: 1000} {
		v[iscsi.KeyErrorRecoveryLevel] = 1
		g := &iscsi.Get{R2T: iscsi.R2T{ITT: 3, Length: 1000}, Into: make([]byte, 1000)}
		u, err := playWith(t, signed(damaged, pdus...), g, &v)
		if off, whole := g.Sequence.Received(); err != nil || off != from || whole != (from == 1000) || len(u.completed) != 1 || u.completed[0] != whole || u.damaged != btoi(damaged >= 0) {
			t.Errorf("%d: %v, %d %v, %+v", damaged, err, off, whole, u)
		}
		v[iscsi.KeyErrorRecoveryLevel] = 0
		g = &iscsi.Get{R2T: iscsi.R2T{ITT: 3, Length: 1000}, Into: make([]byte, 1000)}
		if u, err := playWith(t, signed(damaged, pdus...), g, &v); (damaged == 1 || damaged == 2) != errors.Is(err, iscsi.ErrDigest) || u.damaged != 0 {
			t.Errorf("%d at level 0: %v, %+v", damaged, err, u)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestAbandon: what comes in answer to an R2T that was given up is dropped, also after another one has its place.
func TestAbandon(t *testing.T) {
	near, far := net.Pipe()
	far.Close()
	c := tcp.NewConn(&stream{Conn: near})
	v := iscsi.DefaultValues()
	c.NoticeKeyValues(&v, 4096)
	first, second := &iscsi.Get{R2T: iscsi.R2T{ITT: 3, Length: 10}}, &iscsi.Get{R2T: iscsi.R2T{ITT: 3, Length: 10}}
	c.GetData(first)
	if c.Abandon(first) {
		t.Error("it has not been sent, and is given up")
	}
	first.Out.Queued = false // as it is after it was sent
	if !c.Abandon(first) {
		t.Error("it is not given up")
	}
	c.GetData(second)
	if first.R2T.TTT == second.R2T.TTT || second.R2T.TTT == iscsi.NoTag {
		t.Errorf("%#x, %#x", first.R2T.TTT, second.R2T.TTT)
	}
}

// FuzzStream proves that no stream makes a connection place data elsewhere than where they were
// asked for, or pass on more than there is.
func FuzzStream(f *testing.F) {
	k := iscsi.Command{Final: true, Write: true, ITT: 3, EDTL: 1000}
	d := iscsi.DataOut{Final: true, ITT: 3, Offset: 512}
	f.Add(append(pdu(k.Put, []byte("immediate")), pdu(d.Put, make([]byte, 487))...), false)
	f.Fuzz(func(t *testing.T, said []byte, digests bool) {
		into := make([]byte, 500)
		u, _ := play(t, said, &iscsi.Get{R2T: iscsi.R2T{ITT: 3, Offset: 512, Length: 487}, Into: into[:487]}, digests)
		if !bytes.Equal(into[487:], make([]byte, 13)) {
			t.Fatal("data beyond the end")
		}
		if len(u.seen) > len(said)/iscsi.BHSLen {
			t.Fatalf("%d PDUs in %d bytes", len(u.seen), len(said))
		}
	})
}

// TestGetDataAfterTheEnd: another connection of the session may have a command of one that has ended go on
// before that is known. What it asks for is given back.
func TestGetDataAfterTheEnd(t *testing.T) {
	k := iscsi.Command{Final: true, Write: true, ITT: 3, EDTL: 8}
	d := iscsi.DataOut{Final: true, ITT: 3, TTT: 0}
	said := append(pdu(k.Put, nil), pdu(d.Put, make([]byte, 8))...)
	u, err := play(t, said, &iscsi.Get{R2T: iscsi.R2T{ITT: 3, Length: 8}, Into: make([]byte, 8)}, false)
	if err != nil || len(u.completed) != 1 {
		t.Fatalf("%v %+v", err, u)
	}
	sent := u.sent
	u.c.GetData(&iscsi.Get{R2T: iscsi.R2T{ITT: 4, Length: 8}})
	u.c.Flush()
	if u.sent != sent+1 {
		t.Errorf("%d given back, and %d before", u.sent, sent)
	}
	if u.c.DeallocateTaskResources(4) {
		t.Error("data arrive after the end")
	}
}

// impatient is an upper that gives up a task twice while its data are arriving.
type impatient struct {
	upper
	far     *net.TCPConn
	rest    []byte
	placing []bool
}

func (u *impatient) IdleNotify() {
	u.c.Flush()
	if len(u.placing) == 0 {
		for range 2 {
			u.placing = append(u.placing, u.c.DeallocateTaskResources(3))
		}
		u.far.Write(u.rest)
		u.far.CloseWrite()
	}
}

// TestDeallocateTwice: data are arriving until the Get has been given back, however often they are given up.
func TestDeallocateTwice(t *testing.T) {
	c, _, far := pair(t)
	k := iscsi.Command{Final: true, Write: true, ITT: 3, EDTL: 512}
	d := iscsi.DataOut{Final: true, ITT: 3, TTT: 0}
	said := append(pdu(k.Put, nil), pdu(d.Put, make([]byte, 512))...)
	n := len(said) - 100
	far.Write(said[:n])
	u := &impatient{far: far, rest: said[n:]}
	u.c, u.get = c, &iscsi.Get{R2T: iscsi.R2T{ITT: 3, Length: 512}, Into: make([]byte, 512)}
	if err := c.Run(u); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(u.placing, []bool{true, true}) || !slices.Equal(u.completed, []bool{false}) {
		t.Errorf("data are arriving: %v; completed: %v", u.placing, u.completed)
	}
	if c.DeallocateTaskResources(3) {
		t.Error("data arrive after they were given back")
	}
}
