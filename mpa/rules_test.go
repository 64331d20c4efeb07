package mpa

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
)

func TestMULPDU(t *testing.T) {
	tests := []struct {
		emss    int
		markers bool
		want    int
	}{
		{1460, false, 1454},
		{1448, false, 1442},
		{1449, false, 1442},
		{1451, false, 1442},
		{1460, true, 1442}, // three markers
		{536, true, 522},
		{100, false, 128},
		{128, true, 128},
		{64774, false, 64766},
		{65483, false, 64768},
		{65535, true, 64768},
		{200000, false, 64768},
	}
	for _, tt := range tests {
		if got := mulpdu(tt.emss, tt.markers); got != tt.want {
			t.Errorf("EMSS %d, markers %v: %d, want %d", tt.emss, tt.markers, got, tt.want)
		}
		if got := mulpdu(tt.emss, tt.markers); got > minMULPDU && tt.emss < 65536 {
			for pos := 0; pos < markerSpacing; pos += 4 {
				wire := fpduLen(got)
				if tt.markers {
					wire += markerLen * markersIn(pos, wire)
				}
				if wire > tt.emss {
					t.Errorf("EMSS %d: an FPDU at offset %d takes %d bytes", tt.emss, pos, wire)
				}
			}
		}
	}
}

// TestMULPDUFollowsTheEMSS down, below what a DDP header needs, and up again,
// on a stream that is in use (RFC 5044 section 4.5).
func TestMULPDUFollowsTheEMSS(t *testing.T) {
	for _, markers := range []bool{false, true} {
		emss := 1460
		a, b := connect(t, "tcp", &Config{EMSS: func() int { return emss }}, &Config{Markers: markers})
		go b.Receive(&collector{})
		for _, step := range []struct{ emss, want, marked int }{
			{1460, 1454, 1442}, {576, 570, 562}, {575, 566, 558}, {100, 128, 128}, {536, 530, 522}, {8948, 8942, 8870}, {65495, 64768, 64768}, {0, 1422, 1410},
		} {
			emss = step.emss
			for range refreshEvery {
				if err := errors.Join(a.Append(make([]byte, a.MULPDU()), nil), a.Flush()); err != nil {
					t.Fatal(err)
				}
			}
			want := step.want
			if markers {
				want = step.marked
			}
			if a.MULPDU() != want {
				t.Errorf("EMSS %d, markers %v: MULPDU %d, want %d", emss, markers, a.MULPDU(), want)
			}
		}
	}
	c, _ := connect(t, "tcp", nil, nil)
	if n := c.MULPDU(); n < 30000 || n > 64768 {
		t.Errorf("MULPDU %d on loopback, whose EMSS is about 64 KiB", n)
	}
	d, _ := connect(t, "pipe", nil, nil)
	if d.MULPDU() != mulpdu(defaultEMSS, false) {
		t.Errorf("MULPDU %d on a pipe", d.MULPDU())
	}
}

// TestResponderHoldsUntilTheFirstFPDU is RFC 5044 section 7.1.2 rule 4.
func TestResponderHoldsUntilTheFirstFPDU(t *testing.T) {
	for _, crc := range []CRCMode{CRCPrefer, CRCAvoid} {
		client, server := connect(t, "tcp", &Config{CRC: crc}, &Config{CRC: crc})
		if done, err := server.TryFlush(); !done || err != nil {
			t.Fatalf("TryFlush of nothing: %v %v", done, err)
		}
		if err := server.Append([]byte("from the server"), nil); err != nil {
			t.Fatal(err)
		}
		if done, err := server.TryFlush(); done || err != nil {
			t.Fatalf("TryFlush before the first FPDU: %v %v", done, err)
		}
		flushed := make(chan error, 1)
		go func() { flushed <- server.Flush() }()
		if err := errors.Join(client.Append([]byte("from the client, longer than a header"), nil), client.Flush()); err != nil {
			t.Fatal(err)
		}
		if err := server.Receive(until(1, 5)); err != errEnough {
			t.Fatal(err)
		}
		if err := <-flushed; err != nil {
			t.Fatalf("Flush after the first FPDU: %v", err)
		}
		s := until(1, 0)
		if err := client.Receive(s); err != errEnough || string(s.segs[0]) != "from the server" {
			t.Fatalf("%v %q", err, s.segs)
		}
	}
}

// refuser is a Sink that takes no direct segment.
type refuser struct{ collector }

func (*refuser) Direct([]byte, int) (int, bool, error) { return 0, false, errEnough }

// TestResponderMayRefuseTheFirstFPDU by a Terminate, also when it need not wait
// for all of it.
func TestResponderMayRefuseTheFirstFPDU(t *testing.T) {
	client, server := connect(t, "tcp", &Config{CRC: CRCAvoid}, &Config{CRC: CRCAvoid})
	if _, err := client.NetConn().Write(frame(string(make([]byte, 1000)), false)[:100]); err != nil {
		t.Fatal(err)
	}
	if err := server.Receive(&refuser{}); err != errEnough {
		t.Fatal(err)
	}
	if err := server.Append([]byte("no"), nil); err != nil {
		t.Fatal(err)
	}
	if done, err := server.TryFlush(); !done || err != nil {
		t.Fatalf("TryFlush: %v %v", done, err)
	}
}

func TestResponderMayAnswerFromWithinTheSink(t *testing.T) {
	client, server := connect(t, "tcp", nil, nil)
	s := &collector{}
	s.onSeg = func([]byte) error {
		if err := server.Append([]byte("pong"), nil); err != nil {
			return err
		}
		if done, err := server.TryFlush(); !done || err != nil {
			t.Errorf("TryFlush from within Segment: %v %v", done, err)
		}
		return errEnough
	}
	if err := errors.Join(client.Append([]byte("ping"), nil), client.Flush()); err != nil {
		t.Fatal(err)
	}
	if err := server.Receive(s); err != errEnough {
		t.Fatal(err)
	}
	if err := client.Receive(until(1, 0)); err != errEnough {
		t.Fatal(err)
	}
}

func TestHeldResponderDoesNotWaitForEver(t *testing.T) {
	_, server := connect(t, "tcp", nil, &Config{HoldTimeout: time.Millisecond})
	if err := server.Append([]byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if err := server.Flush(); !errors.Is(err, ErrNoFPDU) {
		t.Fatalf("Flush: %v", err)
	}

	_, server = connect(t, "tcp", nil, nil)
	if err := server.Append([]byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	flushed := make(chan error, 1)
	go func() { flushed <- server.Flush() }()
	server.Close()
	if err := <-flushed; err != ddp.ErrClosed {
		t.Fatalf("Flush after Close: %v", err)
	}
}

// TestClientAcceptsAnEarlyFPDU: some responders send before the initiator has.
func TestClientAcceptsAnEarlyFPDU(t *testing.T) {
	client, server := connect(t, "tcp", nil, nil)
	if _, err := server.NetConn().Write(frame("early", true)); err != nil {
		t.Fatal(err)
	}
	s := until(1, 0)
	if err := client.Receive(s); err != errEnough || string(s.segs[0]) != "early" {
		t.Fatalf("%v %q", err, s.segs)
	}
}

func TestWrongCRCIsReportedAndNothingAfterItDelivered(t *testing.T) {
	good := frame("good", true)
	// From the end of the length on: another length means a CRC elsewhere.
	for bit := lengthLen * 8; bit < len(good)*8; bit += 3 {
		bad := bytes.Clone(good)
		bad[bit/8] ^= 1 << (bit % 8)
		client, server := connect(t, "tcp", nil, nil)
		client.NetConn().Write(good)
		client.NetConn().Write(bad)
		client.NetConn().Write(good)
		s := &collector{}
		err := server.Receive(s)
		var de *ddp.Error
		if !errors.Is(err, ErrCRC) || !errors.As(err, &de) || de.Layer != ddp.LayerLLP {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
		if len(s.segs) != 1 {
			t.Fatalf("bit %d flipped: %d segments, want 1", bit, len(s.segs))
		}
		if err := server.Receive(s); !errors.Is(err, ErrCRC) || len(s.segs) != 1 {
			t.Fatalf("Receive went on after an error: %v", err)
		}
		// RFC 5044 section 8: the connection is not closed, a Terminate may go out.
		if err := errors.Join(server.Append([]byte("terminate"), nil), server.Flush()); err != nil {
			t.Fatal(err)
		}
		if err := client.Receive(until(1, 0)); err != errEnough {
			t.Fatal(err)
		}
	}
}

func TestCRCIsNotCheckedWhenOff(t *testing.T) {
	client, server := connect(t, "tcp", &Config{CRC: CRCAvoid}, &Config{CRC: CRCAvoid})
	b := frame("good", true)
	b[len(b)-1] ^= 0xff
	client.NetConn().Write(b)
	if err := server.Receive(until(1, 0)); err != errEnough {
		t.Fatal(err)
	}
}

func TestWrongMarkersAreReported(t *testing.T) {
	out := &memConn{}
	tx := newConn(out, &Config{}, params{initiator: true, txMarkers: true})
	if err := errors.Join(tx.Append(make([]byte, 1200), nil), tx.Flush()); err != nil {
		t.Fatal(err)
	}
	stream := out.out.Bytes()
	for _, at := range []int{0, 512, 1024} {
		bad := bytes.Clone(stream)
		binary.BigEndian.PutUint16(bad[at+2:], binary.BigEndian.Uint16(bad[at+2:])+4)
		rx := newConn(&memConn{in: bytes.NewReader(bad)}, &Config{}, params{rxMarkers: true})
		if err := rx.Receive(&collector{}); !errors.Is(err, ErrMarker) {
			t.Errorf("marker at %d altered: %v", at, err)
		}
		// The reserved bits are ignored.
		bad = bytes.Clone(stream)
		bad[at], bad[at+1] = 0xff, 0xff
		bad[at+3] |= 3
		rx = newConn(&memConn{in: bytes.NewReader(bad)}, &Config{}, params{rxMarkers: true})
		if err := rx.Receive(&collector{}); err != io.EOF {
			t.Errorf("reserved bits of the marker at %d set: %v", at, err)
		}
	}
}

func TestSinkErrorsEndReceive(t *testing.T) {
	want := &ddp.Error{Layer: ddp.LayerDDP, Type: 1, Code: 2}
	client, server := connect(t, "tcp", nil, nil)
	client.NetConn().Write(append(frame("one", true), frame("two", true)...))
	s := &collector{onSeg: func([]byte) error { return want }}
	if err := server.Receive(s); !errors.Is(err, want) || len(s.segs) != 1 {
		t.Fatalf("%v, %d segments", err, len(s.segs))
	}
	if s.batches != 1 {
		t.Errorf("%d calls of BatchEnd after a segment and an error, want 1", s.batches)
	}
}

func TestDetachFreesThePayload(t *testing.T) {
	for _, pool := range []*Pool{nil, {}} {
		client, server := connect(t, "tcp", &Config{Pool: pool}, nil)
		var want [][]byte
		payload := make([]byte, 30000)
		add := func(x byte) {
			for i := range payload {
				payload[i] = x
			}
			if err := client.Append([]byte("header"), [][]byte{payload}); err != nil {
				t.Fatal(err)
			}
			want = append(want, append([]byte("header"), payload...))
		}
		client.Detach() // of nothing
		for x := byte(1); ; x++ {
			add(x)
			if done, err := client.TryFlush(); err != nil {
				t.Fatal(err)
			} else if !done {
				break
			}
		}
		for x := range byte(40) {
			client.Detach()
			add(x)
		}
		client.Detach()
		clear(payload)
		flushed := make(chan error, 1)
		go func() { flushed <- client.Flush() }()
		s := until(len(want), 0)
		if err := server.Receive(s); err != errEnough {
			t.Fatal(err)
		}
		if err := <-flushed; err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if !bytes.Equal(s.segs[i], want[i]) {
				t.Fatalf("segment %d differs", i)
			}
		}
		if pool != nil && len(pool.copies) == 0 {
			t.Error("the copy did not go back to the pool")
		}
	}
}

func TestDrainEndsWithThePeerOrTheTime(t *testing.T) {
	client, server := connect(t, "tcp", nil, nil)
	client.NetConn().Write(make([]byte, 100000))
	client.CloseWrite()
	server.Drain(time.Hour)

	client, server = connect(t, "tcp", nil, nil)
	client.NetConn().Write(make([]byte, 10))
	server.Drain(time.Millisecond)
	server.Close()
	server.Drain(time.Hour)
}

func TestCloseUnblocksEverything(t *testing.T) {
	for _, kind := range []string{"tcp", "pipe"} {
		client, _ := connect(t, kind, nil, nil)
		for range 300 { // more than a socket takes
			if err := client.Append(make([]byte, 18), [][]byte{make([]byte, 64000)}); err != nil {
				t.Fatal(err)
			}
		}
		res := make(chan error, 2)
		go func() { res <- client.Receive(&collector{}) }()
		go func() { res <- client.Flush() }()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { client.Close() })
		}
		wg.Wait()
		for range 2 {
			if err := <-res; err != ddp.ErrClosed {
				t.Errorf("%s: %v, want ddp.ErrClosed", kind, err)
			}
		}
		if err := client.Append([]byte("x"), nil); err != ddp.ErrClosed {
			t.Errorf("%s: Append after Close: %v", kind, err)
		}
		if err := client.Receive(&collector{}); err != ddp.ErrClosed {
			t.Errorf("%s: Receive after Close: %v", kind, err)
		}
	}
}

func TestLostConnectionsSayWhy(t *testing.T) {
	client, server := connect(t, "tcp", nil, nil)
	server.NetConn().(*net.TCPConn).SetLinger(0)
	server.Close() // RST
	err := client.Receive(&collector{})
	var de *ddp.Error
	var oe *net.OpError
	if !errors.As(err, &de) || de.Code != CodeConnectionLost || !errors.As(err, &oe) {
		t.Fatalf("Receive: %v", err)
	}
	if err := client.Append([]byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if err := client.Flush(); !errors.As(err, &de) || !errors.As(err, &oe) {
		t.Fatalf("Flush: %v", err)
	}
	if err2 := client.Append([]byte("x"), nil); err2 == nil {
		t.Fatal("Append on a lost connection succeeded")
	}
}

func TestCloseWriteNeedsHalfClose(t *testing.T) {
	a, _ := connect(t, "pipe", nil, nil)
	if err := a.CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Fatalf("CloseWrite on a pipe: %v", err)
	}
}

// TestNoAllocationsInSteadyState sends and receives small and large segments.
func TestNoAllocationsInSteadyState(t *testing.T) {
	for name, cfg := range map[string]Config{
		"crc":     {},
		"no crc":  {CRC: CRCAvoid},
		"large":   {LargeFPDU: MaxLargeFPDU},
		"markers": {Markers: true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Pool = &Pool{}
			a, b := connect(t, "tcp", &cfg, &cfg)
			s := &counter{mem: make([]byte, 1<<20), hdr: 14, want: 40 * (1000 + 100), done: make(chan struct{}, 1), direct: true}
			go b.Receive(s)
			hdr, large, small := make([]byte, 14), [][]byte{make([]byte, 400), make([]byte, 600)}, [][]byte{make([]byte, 100)}
			round := func() {
				for range 40 {
					if err := a.Append(hdr, large); err != nil {
						t.Fatal(err)
					}
					if err := a.Append(hdr, small); err != nil {
						t.Fatal(err)
					}
				}
				if done, err := a.TryFlush(); err != nil {
					t.Fatal(err)
				} else if !done {
					if err := a.Flush(); err != nil {
						t.Fatal(err)
					}
				}
				<-s.done
			}
			for range 50 {
				round()
			}
			if n := testing.AllocsPerRun(200, round); n != 0 {
				t.Errorf("%v allocations per round of 80 segments, want 0", n)
			}
		})
	}
}

// TestIdleStreamsAreCheap measures what waiting connections hold, both ends,
// after traffic.
func TestIdleStreamsAreCheap(t *testing.T) {
	const streams = 200
	cfg := &Config{Pool: &Pool{}}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range streams {
		a, b := connect(t, "tcp", cfg, cfg)
		got := make(chan struct{}, 2)
		sink := func() *collector { return &collector{onSeg: func([]byte) error { got <- struct{}{}; return nil }} }
		go a.Receive(sink())
		go b.Receive(sink())
		for _, c := range []*Conn{a, b} {
			if err := errors.Join(c.Append(make([]byte, 18), [][]byte{make([]byte, 2000)}), c.Flush()); err != nil {
				t.Fatal(err)
			}
			<-got
			// A part of an FPDU is on its way, too.
			if _, err := c.NetConn().Write(frame("a segment whose end does not come", true)[:20]); err != nil {
				t.Fatal(err)
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)
	cfg.Pool.mu.Lock()
	used -= int64(len(cfg.Pool.reads)*readBuffer + len(cfg.Pool.arenas)*arenaSize)
	cfg.Pool.mu.Unlock()
	per := used / (2 * streams)
	t.Logf("an idle end costs %d bytes, stacks %d", per, int64(after.StackInuse-before.StackInuse)/(2*streams))
	if per > 14<<10 {
		t.Error("want at most 14 KiB of the 20 KiB that a stream may cost")
	}
}
