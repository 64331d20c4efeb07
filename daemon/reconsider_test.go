package daemon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/transport"
)

// udpPath stands between a host and another one's UDP port, and drops what it is
// told to.
type udpPath struct {
	port   uint16
	to     atomic.Uint32
	closed atomic.Bool // drops everything
}

// newUDPPath makes one that outlives the hosts that are made later.
func newUDPPath(t *testing.T) *udpPath {
	t.Helper()
	here, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	u := &udpPath{port: uint16(here.LocalAddr().(*net.UDPAddr).Port)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.carry(here)
	}()
	t.Cleanup(func() {
		here.Close()
		<-ended
	})
	return u
}

func (u *udpPath) carry(here *net.UDPConn) {
	var back sync.WaitGroup
	there := map[string]net.Conn{} // by who sends
	defer func() {
		for _, c := range there {
			c.Close()
		}
		back.Wait()
	}()
	b := make([]byte, 65536)
	for {
		n, from, err := here.ReadFromUDP(b)
		if err != nil {
			return
		}
		c := there[from.String()]
		if c == nil {
			if c, err = net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", u.to.Load())); err != nil {
				return
			}
			there[from.String()] = c
			back.Go(func() { u.answer(here, c, from) })
		}
		if !u.closed.Load() {
			// Nobody may listen there yet.
			_, _ = c.Write(b[:n])
		}
	}
}

func (u *udpPath) answer(here *net.UDPConn, c net.Conn, to *net.UDPAddr) {
	b := make([]byte, 65536)
	for {
		n, err := c.Read(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil && !u.closed.Load():
			// It may have gone.
			_, _ = here.WriteToUDP(b[:n], to)
		}
	}
}

// goesOver waits until the disk's streams are over SCTP in UDP by measurement, and
// says how it stands if that never comes.
func (h *host) goesOver(when string) {
	h.t.Helper()
	var last string
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Logf("%s: %s", when, last)
		}
	})
	eventually(h.t, "the disk is over what is fastest by measurement, "+when, func() bool {
		at, c := h.status().Attachments, h.peer("beta").Carrier
		last = fmt.Sprintf("%v %+v", h.streamsOver(), c)
		return len(at) == 1 && at[0].State == api.AttachReady && fmt.Sprint(h.streamsOver()) == "[sctp-udp sctp-udp]" &&
			c.Transport == "sctp-udp" && strings.Contains(c.Why, "as measured: sctp-udp 2000 MB/s, tcp 1000 MB/s") && !strings.Contains(c.Why, "no sctp-udp")
	})
}

// TestDiskGoesOverToTheFasterTransportOnceThatWorks: it was attached while the other
// one did not work, for a reason that has passed. The session goes on, and nobody has
// to cut its streams for it.
func TestDiskGoesOverToTheFasterTransportOnceThatWorks(t *testing.T) {
	const silent = "the path dropped its packets"
	for name, prepare := range map[string]func(*host, *host, *udpPath) (why string, passes func()){
		silent: func(_, _ *host, u *udpPath) (string, func()) {
			u.closed.Store(true)
			return "no sctp-udp: it failed", func() { u.closed.Store(false) }
		},
		"another program had the peer's port": func(_, beta *host, _ *udpPath) (string, func()) {
			c, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", beta.udp))
			if err != nil {
				t.Fatal(err)
			}
			return "no sctp-udp: beta has none for this host", func() { c.Close() }
		},
		"it could not be measured": func(alpha, _ *host, _ *udpPath) (string, func()) {
			return "sctp-udp: not measured, no memory, tcp 1000 MB/s", alpha.unmeasurable(transport.SCTPUDP)
		},
		"TCP could not be measured": func(alpha, _ *host, _ *udpPath) (string, func()) {
			return "sctp-udp 2000 MB/s, tcp: not measured, no memory", alpha.unmeasurable(transport.TCP)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := newUDPPath(t)
			alpha, beta := &host{t: t, avoid: testRetry, trial: carrier.TrialTime}, newHost(t, "")
			if name == silent {
				alpha.trial = 4 * testTrial // one of them is to succeed, on a busy machine as well
			}
			alpha.begin("")
			path.to.Store(uint32(beta.udp))
			why, passes := prepare(alpha, beta, path)
			beta.declare("alpha", alpha, over("auto", alpha))
			alpha.declare("beta", beta, fmt.Sprintf("transport: auto\nudp_port: %d\n", path.port))
			beta.export("disk", beta.image("disk.img", 1<<20), false)
			c := alpha.attach("disk")
			ok(t, c, cmdWrite, 0, 512, make([]byte, 512))
			if kinds, got := fmt.Sprint(alpha.streamsOver()), alpha.peer("beta").Carrier; kinds != "[tcp tcp]" || got.Transport != "tcp" || !strings.Contains(got.Why, why) {
				t.Errorf("streams over %s, carrier %+v, want tcp: %s", kinds, got, why)
			}
			passes()
			alpha.goesOver("after it has passed")
			ok(t, c, cmdRead, 0, 512, nil)
			if n := strings.Count(alpha.log.String(), `msg="disk is attached"`); n != 1 {
				t.Errorf("the disk was attached %d times", n)
			}
			if log := alpha.log.String(); !strings.Contains(log, "its session goes over from tcp to sctp-udp, which is faster") {
				t.Errorf("the log does not tell:\n%s", log)
			}
		})
	}
}

// unmeasurable lets measurements of a carrier fail until it is called.
func (h *host) unmeasurable(k transport.Kind) (end func()) {
	var over atomic.Bool
	known := h.d.opt.rate
	h.stop()
	h.rate = func(ctx context.Context, by *local.Consumer, p carrier.Peer, of transport.Kind) (float64, error) {
		if of == k && !over.Load() {
			return 0, errors.New("no memory")
		}
		return known(ctx, by, p, of)
	}
	h.start()
	return func() { over.Store(true) }
}

// TestAutoEndsWithTheFastestWhateverHappened has random things happen to two hosts, in
// any order and while questions are under way; then the link is well, and nothing else
// happens.
func TestAutoEndsWithTheFastestWhateverHappened(t *testing.T) {
	runs := 12
	if testing.Short() {
		runs = 2
	}
	for seed := range runs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(seed)))
			var broken [3]atomic.Bool // measurements, by carrier
			path := newUDPPath(t)
			alpha, beta := &host{t: t, avoid: 5 * time.Millisecond, trial: 4 * testTrial}, newHost(t, "")
			path.to.Store(uint32(beta.udp))
			known := rated(map[transport.Kind]float64{transport.SCTPUDP: 2e9, transport.TCP: 1e9})
			alpha.rate = func(ctx context.Context, by *local.Consumer, p carrier.Peer, k transport.Kind) (float64, error) {
				if broken[k].Load() {
					return 0, errors.New("no memory")
				}
				return known(ctx, by, p, k)
			}
			alpha.begin("")
			alphas := fmt.Sprintf("transport: auto\nudp_port: %d\n", path.port)
			beta.declare("alpha", alpha, over("auto", alpha))
			alpha.declare("beta", beta, alphas)
			beta.export("disk", beta.image("disk.img", 1<<20), false)
			path.closed.Store(r.IntN(2) == 0)
			broken[transport.TCP].Store(r.IntN(2) == 0)
			broken[transport.SCTPUDP].Store(r.IntN(2) == 0)
			alpha.attach("disk")
			events := []struct {
				name string
				f    func()
			}{
				{"path", func() { path.closed.Store(!path.closed.Load()) }},
				{"TCP's measurement", func() { broken[transport.TCP].Store(!broken[transport.TCP].Load()) }},
				{"SCTP's measurement", func() { broken[transport.SCTPUDP].Store(!broken[transport.SCTPUDP].Load()) }},
				{"beta has tcp", func() { beta.declare("alpha", alpha, "transport: tcp\n") }},
				{"beta has auto", func() { beta.declare("alpha", alpha, over("auto", alpha)) }},
				{"alpha has tcp", func() { alpha.declare("beta", beta, "transport: tcp\n") }},
				{"alpha has auto", func() { alpha.declare("beta", beta, alphas) }},
				{"a stream is killed", func() {
					if list := beta.status().Streams; len(list) > 0 {
						// It may have ended by itself.
						_, _ = beta.api.KillStream(t.Context(), list[r.IntN(len(list))].ID)
					}
				}},
				// Others ask too, and may fail.
				{"ping", func() { _ = alpha.ping() }},
				{"streams", func() { alpha.streamsOver() }},
			}
			for range 2 + r.IntN(8) {
				e := events[r.IntN(len(events))]
				t.Log(e.name)
				e.f()
			}
			beta.declare("alpha", alpha, over("auto", alpha))
			alpha.declare("beta", beta, alphas)
			path.closed.Store(false)
			broken[transport.TCP].Store(false)
			broken[transport.SCTPUDP].Store(false)
			alpha.goesOver("after all has passed")
			ok(t, alpha.nbd("disk"), cmdRead, 0, 512, nil)
		})
	}
}
