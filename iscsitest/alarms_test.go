package iscsitest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsitest"
	"github.com/ironwarp/ironwarp/scsi"
)

// changed is a connection with the target on which something else is read than it has sent.
type changed struct {
	net.Conn
	read func(b []byte) (int, error)
}

func (c changed) Read(b []byte) (int, error) { return c.read(b) }

// through dials over TCP, and has each connection changed.
func through(change func(nc net.Conn) net.Conn) func(ctx context.Context, address string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		var d net.Dialer
		nc, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return change(nc), nil
	}
}

// noAlarm fails the test for each case that a target fails although it does nothing wrong.
func noAlarm(t *testing.T, o iscsitest.Options) {
	t.Helper()
	o.Allow = iscsitest.Data
	report, err := iscsitest.Run(t.Context(), serve(t, nil), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		if r.Verdict.Bad() || r.Verdict == iscsitest.Warn {
			t.Errorf("%s %s: %s\n%s", r.Verdict, r.Case, r.Found, r.Words())
		}
	}
	t.Log(report.Summary())
	if n := report.Count(iscsitest.Pass); n < len(report.Results)/2 {
		t.Errorf("%s", report.Summary())
	}
}

// TestSlowTargetIsNotFailed: each answer comes late.
func TestSlowTargetIsNotFailed(t *testing.T) {
	noAlarm(t, iscsitest.Options{Timeout: time.Minute, Only: []string{"login", "numbering", "nop", "text", "task"}, Dial: through(func(nc net.Conn) net.Conn {
		return changed{nc, func(b []byte) (int, error) {
			n, err := nc.Read(b)
			if n > 0 {
				timer := time.NewTimer(20 * time.Millisecond) // the delay is what is tested
				<-timer.C
			}
			return n, err
		}}
	})})
}

// TestTargetThatLosesConnectionsIsNotFailed: one of four connections ends somewhere.
func TestTargetThatLosesConnectionsIsNotFailed(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	noAlarm(t, iscsitest.Options{Timeout: time.Minute, Only: []string{"login.plain", "numbering", "nop", "text", "data", "task", "session", "scsi"}, Dial: through(func(nc net.Conn) net.Conn {
		mu.Lock()
		defer mu.Unlock()
		left := 1 << 30
		if rng.IntN(4) == 0 {
			left = rng.IntN(2000)
		}
		return changed{nc, func(b []byte) (int, error) {
			if left == 0 {
				return 0, io.ErrUnexpectedEOF
			}
			n, err := nc.Read(b[:min(len(b), left)])
			left -= n
			return n, err
		}}
	})})
}

// headers is a connection on which each header of the target is changed.
func headers(nc net.Conn, change func(h *iscsi.BHS)) net.Conn {
	var ready []byte
	return changed{nc, func(b []byte) (int, error) {
		if len(ready) == 0 {
			var h iscsi.BHS
			if n, err := io.ReadFull(nc, h[:]); err != nil {
				ready = append(ready, h[:n]...)
				n := copy(b, ready)
				ready = nil
				return n, err
			}
			change(&h)
			n := h.AHSLen() + h.DataLen() + iscsi.Pad(h.DataLen())
			ready = append(h[:], make([]byte, n)...)
			nc.SetReadDeadline(time.Time{})
			if _, err := io.ReadFull(nc, ready[iscsi.BHSLen:]); err != nil {
				return 0, err
			}
		}
		n := copy(b, ready)
		ready = ready[n:]
		return n, nil
	}}
}

// verdicts are those on some cases, by case.
func verdicts(t *testing.T, o iscsitest.Options) map[string]iscsitest.Verdict {
	t.Helper()
	report, err := iscsitest.Run(t.Context(), serve(t, nil), o)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]iscsitest.Verdict{}
	for _, r := range report.Results {
		all[r.Case] = r.Verdict
		t.Log(r.Line())
	}
	return all
}

// TestTargetWithAWindowOfOneIsNotFailed: MaxCmdSN is ExpCmdSN.
func TestTargetWithAWindowOfOneIsNotFailed(t *testing.T) {
	noAlarm(t, iscsitest.Options{Timeout: time.Minute, Only: []string{"login", "numbering", "nop", "text", "data", "task", "session", "scsi", "reservation"}, Dial: through(func(nc net.Conn) net.Conn {
		return headers(nc, func(h *iscsi.BHS) { copy(h[32:36], h[28:32]) })
	})})
}

// TestResidualCountOfNoResidual: where neither bit is set it is to be ignored, and only SHOULD be 0 (RFC 7143 section
// 11.4.5.1).
func TestResidualCountOfNoResidual(t *testing.T) {
	got := verdicts(t, iscsitest.Options{Only: []string{"data.none", "data.inquiry-allocation", "data.inquiry-underflow"}, Dial: through(func(nc net.Conn) net.Conn {
		return headers(nc, func(h *iscsi.BHS) {
			if o := h.Opcode(); (o == iscsi.OpDataIn && h[1]&1 != 0 || o == iscsi.OpResponse) && h[1]&0x1e == 0 {
				h[47] = 7
			}
		})
	})})
	if got["data.none"] != iscsitest.Warn || got["data.inquiry-allocation"] != iscsitest.Warn || got["data.inquiry-underflow"] != iscsitest.Pass {
		t.Errorf("%v", got)
	}
}

// TestSessionWithoutTSIHIsJoinedByNobody: who logs in with TSIH 0 makes a session of his own.
func TestSessionWithoutTSIHIsJoinedByNobody(t *testing.T) {
	got := verdicts(t, iscsitest.Options{Only: []string{"login.tsih", "session.join-of-another"}, Dial: through(func(nc net.Conn) net.Conn {
		return headers(nc, func(h *iscsi.BHS) {
			if h.Opcode() == iscsi.OpLoginResp {
				h[14], h[15] = 0, 0
			}
		})
	})})
	if got["login.tsih"] != iscsitest.Fail || got["session.join-of-another"] != iscsitest.Inconclusive {
		t.Errorf("%v", got)
	}
}

// deaf is a connection to a target that does not see a PDU with opcode 0x1d, nor, if that is the end, what follows it.
type deaf struct {
	net.Conn
	end  bool
	over bool
}

func (d *deaf) Write(b []byte) (int, error) {
	unknown := len(b) > 0 && b[0]&0x3f == 0x1d
	d.over = d.over || unknown && d.end
	if unknown || d.over {
		return len(b), nil
	}
	return d.Conn.Write(b)
}

// TestSilenceIsNoVerdict: who does not reject what he has to is to blame if he goes on, and answers a ping.
func TestSilenceIsNoVerdict(t *testing.T) {
	for end, want := range map[bool]iscsitest.Verdict{false: iscsitest.Fail, true: iscsitest.Inconclusive} {
		var got iscsitest.Verdict
		// Who is blamed has answered the ping in time, for which a busy machine may need more.
		for timeout := 300 * time.Millisecond; got != want && timeout < time.Minute; timeout *= 2 {
			got = verdicts(t, iscsitest.Options{Timeout: timeout, Only: []string{"session.opcode-unknown"}, Dial: through(func(nc net.Conn) net.Conn {
				return &deaf{Conn: nc, end: end}
			})})["session.opcode-unknown"]
			if got != want && got != iscsitest.Inconclusive {
				break
			}
		}
		if got != want {
			t.Errorf("end %t: %v", end, got)
		}
	}
}

// busy is a connection with a target that turns commands away: away says which, of how many that are under way. What
// goes to the target in place of one is a ping with its numbers, and what comes back is made its response.
type busy struct {
	net.Conn
	away func(under int) (scsi.Status, bool)

	mu       sync.Mutex
	turned   map[uint32]scsi.Status // by task tag
	under    map[uint32]bool
	sent     bytes.Buffer // of PDUs that are not whole yet
	received bytes.Buffer
	ready    []byte
}

// next takes a whole PDU out of b, nil if there is none.
func next(b *bytes.Buffer) []byte {
	if b.Len() < iscsi.BHSLen {
		return nil
	}
	h := iscsi.BHS(b.Bytes())
	n := iscsi.BHSLen + h.AHSLen() + h.DataLen() + iscsi.Pad(h.DataLen())
	if b.Len() < n {
		return nil
	}
	return bytes.Clone(b.Next(n))
}

func (c *busy) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent.Write(b)
	for p := next(&c.sent); p != nil; p = next(&c.sent) {
		h := (*iscsi.BHS)(p)
		switch itt := h.ITT(); h.Opcode() {
		case iscsi.OpCommand:
			status, away := c.away(len(c.under))
			if !away {
				c.under[itt] = true
				delete(c.turned, itt)
				break
			}
			c.turned[itt] = status
			k, _ := iscsi.ParseCommand(h)
			ping := iscsi.NOP{Immediate: k.Immediate, ITT: itt, TTT: iscsi.NoTag, CmdSN: k.CmdSN, ExpStatSN: k.ExpStatSN}
			*h = iscsi.BHS{}
			ping.PutOut(h)
			p = p[:iscsi.BHSLen]
		case iscsi.OpDataOut:
			if _, away := c.turned[itt]; away {
				continue
			}
		case iscsi.OpTaskMgmt:
			clear(c.under)
		}
		if _, err := c.Conn.Write(p); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

func (c *busy) Read(b []byte) (int, error) {
	var piece [4096]byte
	for len(c.ready) == 0 {
		p := next(&c.received)
		if p == nil {
			n, err := c.Conn.Read(piece[:])
			if err != nil {
				return 0, err
			}
			c.received.Write(piece[:n])
			continue
		}
		c.ready = c.answer(p)
	}
	n := copy(b, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

// answer is what the tester is told in place of p.
func (c *busy) answer(p []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := (*iscsi.BHS)(p)
	itt := h.ITT()
	switch h.Opcode() {
	case iscsi.OpResponse:
		delete(c.under, itt)
	case iscsi.OpDataIn:
		if d, _ := iscsi.ParseDataIn(h); d.HasStatus {
			delete(c.under, itt)
		}
	case iscsi.OpNOPIn:
		status, away := c.turned[itt]
		if n, _ := iscsi.ParseNOPIn(h); away {
			r := iscsi.Response{Response: iscsi.CommandCompleted, Status: uint8(status), ITT: itt, Numbers: n.Numbers}
			*h = iscsi.BHS{}
			r.Put(h)
		}
	}
	return p
}

// turning dials over TCP, and has commands turned away.
func turning(away func(under int) (scsi.Status, bool)) func(ctx context.Context, address string) (net.Conn, error) {
	return through(func(nc net.Conn) net.Conn {
		return &busy{Conn: nc, away: away, turned: map[uint32]scsi.Status{}, under: map[uint32]bool{}}
	})
}

// forBusy are the groups whose PDUs have no digests.
var forBusy = []string{"login.plain", "numbering", "nop", "text", "data", "task", "session", "scsi", "reservation"}

// TestBusyTargetIsNotFailed: some commands end with BUSY, and have to be sent again.
func TestBusyTargetIsNotFailed(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var mu sync.Mutex
	noAlarm(t, iscsitest.Options{Timeout: time.Minute, Only: forBusy, Dial: turning(func(int) (scsi.Status, bool) {
		mu.Lock()
		defer mu.Unlock()
		return scsi.Busy, rng.IntN(4) == 0
	})})
}

// TestTargetWithAQueueOfOneIsNotFailed: it says that it takes more commands at once, and ends all but one with TASK SET
// FULL.
func TestTargetWithAQueueOfOneIsNotFailed(t *testing.T) {
	noAlarm(t, iscsitest.Options{Timeout: 2 * time.Second, Only: forBusy, Dial: turning(func(under int) (scsi.Status, bool) {
		return scsi.TaskSetFull, under > 0
	})})
}

// lingering is a connection with a target that does not end it after it has refused a login.
type lingering struct {
	net.Conn
	mu       sync.Mutex
	received bytes.Buffer
	refused  bool
	until    time.Time // of a read
}

func (c *lingering) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	return c.Conn.SetReadDeadline(t)
}

func (c *lingering) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received.Write(b[:n])
	for p := next(&c.received); p != nil; p = next(&c.received) {
		h := (*iscsi.BHS)(p)
		r, _ := iscsi.ParseLoginResponse(h)
		// What is no login ends the connection by a sentence of its own.
		c.refused = h.Opcode() == iscsi.OpLoginResp && r.Status>>8 != 0 && r.Status != iscsi.LoginInvalid
	}
	if err != nil && c.refused {
		timer := time.NewTimer(time.Until(c.until))
		<-timer.C
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// TestTargetThatRefusesAndGoesOnFailsForThatAlone: it refuses what it has to, so that the sentences about that hold.
func TestTargetThatRefusesAndGoesOnFailsForThatAlone(t *testing.T) {
	o := iscsitest.Options{Timeout: 2 * time.Second, Only: []string{"login"}, Dial: through(func(nc net.Conn) net.Conn { return &lingering{Conn: nc} })}
	report, err := iscsitest.Run(t.Context(), serve(t, nil), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		if alone := r.Case == "login.ends-after-refusal"; alone != r.Verdict.Bad() || r.Verdict == iscsitest.Warn {
			t.Errorf("%s\n%s", r.Line(), r.Words())
		}
	}
	t.Log(report.Summary())
}

// window is a connection with a target that ends it at a command behind the window: when the next PDU is sent, or when
// something is waited for.
type window struct {
	net.Conn
	late           bool
	limit          uint32 // MaxCmdSN
	sent, received bytes.Buffer
	over           bool
}

func (c *window) Write(b []byte) (int, error) {
	if c.over && !c.late {
		return 0, io.ErrClosedPipe
	}
	c.sent.Write(b)
	for p := next(&c.sent); p != nil; p = next(&c.sent) {
		h := (*iscsi.BHS)(p)
		if k, _ := iscsi.ParseCommand(h); h.Opcode() == iscsi.OpCommand && int32(k.CmdSN-c.limit) > 0 {
			c.over = true
			return len(b), nil
		}
	}
	if c.over {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *window) Read(b []byte) (int, error) {
	if c.over {
		return 0, io.EOF
	}
	n, err := c.Conn.Read(b)
	c.received.Write(b[:n])
	for p := next(&c.received); p != nil; p = next(&c.received) {
		c.limit = binary.BigEndian.Uint32(p[32:])
	}
	return n, err
}

// TestEndOfAConnectionIsFoundHoweverSoon: the target ends it at the same command each time, and that is seen when the next
// PDU is sent, or later.
func TestEndOfAConnectionIsFoundHoweverSoon(t *testing.T) {
	n := 0
	o := iscsitest.Options{Timeout: 2 * time.Second, Only: []string{"numbering.above"}, Dial: through(func(nc net.Conn) net.Conn {
		n++
		return &window{Conn: nc, late: n%2 == 0}
	})}
	report, err := iscsitest.Run(t.Context(), serve(t, nil), o)
	if err != nil {
		t.Fatal(err)
	}
	if r := report.Results[0]; r.Verdict != iscsitest.Fail {
		t.Errorf("%s\n%s", r.Line(), r.Words())
	}
}

// rewritten is a connection on which other PDUs are read than the target has sent.
type rewritten struct {
	net.Conn
	change   func(p []byte) []byte
	received bytes.Buffer
	ready    []byte
}

func (c *rewritten) Read(b []byte) (int, error) {
	var piece [4096]byte
	for len(c.ready) == 0 {
		if p := next(&c.received); p != nil {
			c.ready = c.change(p)
			continue
		}
		n, err := c.Conn.Read(piece[:])
		if err != nil {
			return 0, err
		}
		c.received.Write(piece[:n])
	}
	n := copy(b, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

// TestKeyThatIsNotUnderstoodInAText: who answers a key of the login so does not change it, and in a Text Request it is not
// used as it has to be, so that RFC 7143 section 6.2 does not forbid the answer.
func TestKeyThatIsNotUnderstoodInAText(t *testing.T) {
	seen := false
	o := iscsitest.Options{Timeout: 2 * time.Second, Only: []string{"text.renegotiation"}, Dial: through(func(nc net.Conn) net.Conn {
		return &rewritten{Conn: nc, change: func(p []byte) []byte {
			const was, is = "MaxBurstLength=Reject\x00", "MaxBurstLength=NotUnderstood\x00"
			if !bytes.HasPrefix(p[iscsi.BHSLen:], []byte(was)) {
				return p
			}
			seen = true
			p = append(p[:iscsi.BHSLen:iscsi.BHSLen], is...)
			p[7] = byte(len(is))
			return append(p, make([]byte, iscsi.Pad(len(is)))...)
		}}
	})}
	report, err := iscsitest.Run(t.Context(), serve(t, nil), o)
	if err != nil {
		t.Fatal(err)
	}
	if r := report.Results[0]; r.Verdict != iscsitest.Pass || !seen {
		t.Errorf("%t %s\n%s", seen, r.Line(), r.Words())
	}
}

// TestTargetThatIsGoneIsTracedAndCounted: it takes one case with it, which has passed until then.
func TestTargetThatIsGoneIsTracedAndCounted(t *testing.T) {
	left := 2 // connections: whether there is a target, and the case
	plain := through(func(nc net.Conn) net.Conn { return nc })
	o := iscsitest.Options{Timeout: 2 * time.Second, Recover: time.Millisecond, Only: []string{"login.portal-group"}, Dial: func(ctx context.Context, address string) (net.Conn, error) {
		if left--; left < 0 {
			return nil, syscall.ECONNREFUSED
		}
		return plain(ctx, address)
	}}
	report, err := iscsitest.Run(t.Context(), serve(t, nil), o)
	if err != nil {
		t.Fatal(err)
	}
	r := report.Results[0]
	if r.Verdict != iscsitest.TargetDown || len(r.Trace) == 0 || !strings.HasSuffix(r.Found, "after this") {
		t.Errorf("%s\n%s", r.Line(), r.Words())
	}
	if md := report.Markdown("x"); !strings.Contains(md, "| TARGET-DOWN |") || !strings.Contains(md, "| login | 0 | 0 | 0 | 0 | 0 | 1 |") {
		t.Error(md)
	}
}

// TestSessionMayBeLookedForAtTheEndOfALogin: who joins a session that there is not is refused with the last response.
func TestSessionMayBeLookedForAtTheEndOfALogin(t *testing.T) {
	var said []byte
	for _, r := range []iscsi.LoginResponse{{CSG: iscsi.Operational}, {CSG: iscsi.Operational, Status: iscsi.LoginNoSession}} {
		var h iscsi.BHS
		r.ITT = 1
		r.Put(&h)
		said = append(said, h[:]...)
	}
	o := iscsitest.Options{Timeout: 2 * time.Second, Only: []string{"login.unknown-session"},
		Dial: func(context.Context, string) (net.Conn, error) { return script{Reader: bytes.NewReader(said)}, nil }}
	report, err := iscsitest.Run(t.Context(), iscsitest.Target{Address: "127.0.0.1:1", Name: name}, o)
	if err != nil {
		t.Fatal(err)
	}
	if r := report.Results[0]; r.Verdict != iscsitest.Pass {
		t.Errorf("%s\n%s", r.Line(), r.Words())
	}
}

// script is a target that says what it is told to, whatever it hears.
type script struct {
	net.Conn
	*bytes.Reader
}

func (s script) Read(b []byte) (int, error)       { return s.Reader.Read(b) }
func (s script) Write(b []byte) (int, error)      { return len(b), nil }
func (s script) Close() error                     { return nil }
func (s script) SetReadDeadline(time.Time) error  { return nil }
func (s script) SetWriteDeadline(time.Time) error { return nil }

// FuzzTarget: a target that sends anything at any time does not crash the tester, nor keep it.
func FuzzTarget(f *testing.F) {
	f.Add(byte(0), []byte{})
	var mu sync.Mutex
	target := serve(f, nil)
	for i, group := range []string{"login", "numbering", "nop", "text", "data", "task", "session", "scsi", "reservation"} {
		var streams [][]byte
		record := through(func(nc net.Conn) net.Conn {
			var b []byte
			return changed{nc, func(p []byte) (int, error) {
				n, err := nc.Read(p)
				b = append(b, p[:n]...)
				if err != nil || n == 0 {
					return n, err
				}
				mu.Lock()
				defer mu.Unlock()
				if len(streams) < 3 {
					streams = append(streams, b)
				} else {
					streams[len(b)%3] = b
				}
				return n, err
			}}
		})
		if _, err := iscsitest.Run(f.Context(), target, iscsitest.Options{Only: []string{group}, Allow: iscsitest.Data, Dial: record, Timeout: 2 * time.Second}); err != nil {
			f.Fatal(err)
		}
		for _, b := range streams {
			f.Add(byte(i), b[:min(len(b), 4096)])
		}
	}
	all := iscsitest.Select(&target, &iscsitest.Options{})
	f.Fuzz(func(t *testing.T, which byte, b []byte) {
		c := all[(int(which)*37+len(b))%len(all)]
		o := iscsitest.Options{Only: []string{c.ID}, Allow: iscsitest.Data, Timeout: 20 * time.Millisecond, Recover: time.Millisecond,
			Dial: func(context.Context, string) (net.Conn, error) { return script{Reader: bytes.NewReader(b)}, nil }}
		report, err := iscsitest.Run(t.Context(), iscsitest.Target{Address: "127.0.0.1:1", Name: name}, o)
		if err != nil || len(report.Results) != 1 {
			t.Fatalf("%d results, %v", len(report.Results), err)
		}
		for _, r := range report.Results {
			_ = r.Line() + r.Words()
			if err := r.WriteCapture(io.Discard, time.Now()); err != nil {
				t.Error(err)
			}
		}
		if err := iscsitest.WriteJUnit(io.Discard, report); err != nil {
			t.Error(err)
		}
	})
}
