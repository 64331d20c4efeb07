package iscsitest_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsitest"
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

// TestTargetWithAWindowOfOneIsNotFailed: MaxCmdSN is ExpCmdSN.
func TestTargetWithAWindowOfOneIsNotFailed(t *testing.T) {
	noAlarm(t, iscsitest.Options{Timeout: time.Minute, Only: []string{"login", "numbering", "nop", "text", "data", "task", "session", "scsi", "reservation"}, Dial: through(func(nc net.Conn) net.Conn {
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
				copy(h[32:36], h[28:32])
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
	})})
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
