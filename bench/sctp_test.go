package main

import (
	"net"
	"net/netip"
	"regexp"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
)

func TestSCTPContendersDoWhatTheyMeasure(t *testing.T) {
	addr, err := serveSCTP(t.Context(), anyLoopback)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dialSCTP(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	n, bytes, err := c.messages(t.Context(), sctpMessage, upTo(1000))
	if err != nil || n < 1000 || bytes > n*sctpMessage {
		t.Errorf("%d messages, %d bytes, %v", n, bytes, err)
	}
	// The last one and its answer come after all of them.
	if got := c.a.Stats(); got.BytesOut != uint64(bytes+len("all")) || got.MessagesIn != 1 {
		t.Errorf("%+v", got)
	}
	if err := c.echo(t.Context(), make([]byte, 64), false); err != nil {
		t.Error(err)
	}
}

func TestPionFigures(t *testing.T) {
	m := pionFigures{Bytes: 2800, Seconds: 2, CPU: 3, Ops: 2, Median: 0.5}.metrics(1)
	for name, want := range map[string]float64{"rate": 1400, "ops": 1, "each": 2, "p50": 0.5} {
		if m[name] != want {
			t.Errorf("%s: %v, want %v", name, m[name], want)
		}
	}
}

func TestRowsBesideAMissingPionAreLeftOut(t *testing.T) {
	b := &bench{pion: t.TempDir() + "/pion"}
	g := group{name: "g", rows: []row{{name: "beside pion", pion: true}, {name: "beside TCP"}}}
	if rows := b.choose(g, regexp.MustCompile("")); len(rows) != 1 || rows[0].name != "beside TCP" || len(b.leftOut) != 1 {
		t.Errorf("%+v, left out %q", rows, b.leftOut)
	}
}

// Both rates are measured; without loss, the control, everything arrives.
func TestPacketsAreLost(t *testing.T) {
	lab.Require(t)
	const n = 2000
	for loss, most := range map[float64][2]int{0: {n, n}, 0.5: {n * 4 / 10, n * 6 / 10}} {
		h, err := newLossyHosts(t.Context(), loss)
		if err != nil {
			t.Fatal(err)
		}
		if got := passed(t, h, n); got < most[0] || got > most[1] {
			t.Errorf("loss %v: %d of %d packets came", loss, got, n)
		}
		for _, l := range losses {
			wantContenders(t, lossRows(l.name), h.contenders(&bench{}))
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}

// passed sends n packets to the server and counts those that come.
func passed(t *testing.T, h *lossyHosts, n int) (got int) {
	t.Helper()
	var in, out *net.UDPConn
	if err := h.server.Do(func() (err error) {
		in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.server.Addr(), 0)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := h.client.Do(func() (err error) {
		out, err = net.DialUDP("udp", nil, in.LocalAddr().(*net.UDPAddr))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	// A mark follows every few packets, again and again until one is there: the
	// receive buffer never runs over.
	const few, data, mark = 50, 0, 1
	type read struct {
		kind, round byte
	}
	come := make(chan read)
	go func() {
		defer close(come)
		for b := make([]byte, 2); ; {
			if _, err := in.Read(b); err != nil {
				return
			}
			come <- read{b[0], b[1]}
		}
	}()
	for round := byte(0); n > 0; round++ {
		if round > 0 { // the first is for the neighbour's address alone
			for range few {
				send(t, out, data, round)
			}
			n -= few
		}
		again := time.NewTicker(5 * time.Millisecond)
		for marked := false; !marked; {
			select {
			case r := <-come:
				if r.kind == data {
					got++
				}
				marked = r == read{mark, round}
			case <-again.C:
				send(t, out, mark, round)
			}
		}
		again.Stop()
	}
	in.Close()
	for range come { // marks that came twice
	}
	return got
}

func send(t *testing.T, c *net.UDPConn, b ...byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}
