package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/attack/load"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Many streams in one daemon: block sessions of two streams each, as an attached disk
// has by default, a hundred streams for each peer.

var streamCounts = []int{100, 1000, 10_000}

const (
	streamsPerSession = 2
	sessionsPerPeer   = 50
	// dialsAtOnce is how many sessions come up at a time.
	dialsAtOnce = 16
	// streamsIdle is a whole interval of heartbeats, so that each stream has its part.
	streamsIdle = 5 * time.Second
	// One of busyPart sessions reads 4 KiB every busyEvery, for busyTime.
	busyPart  = 100
	busyEvery = 20 * time.Millisecond
	busyTime  = 2 * time.Second
	busyRead  = 4 << 10
)

func streamsOver(k transport.Kind) func(n int) string {
	return func(n int) string { return fmt.Sprintf("%d streams over %s", n, k) }
}

var streamGrowth = []growth{
	{what: "new streams a second", metric: "rate", unit: "/s", more: true},
	{what: "memory of a stream", metric: "memory", unit: "KiB", scale: 1.0 / 1024},
	{what: "CPU of an idle stream", metric: "cpu", unit: "us/s", scale: 1e6},
	{what: "wake-ups of an idle stream", metric: "wake-ups", unit: "/s"},
	{what: "status, for each stream", metric: "status", unit: "us", scale: 1e6},
	{what: "latency of a busy stream", metric: "p50", unit: "us", scale: 1e6},
}

func streamsGroup(k transport.Kind) group {
	return group{name: "many streams over " + k.String(), rounds: 1, cold: true, rows: growthRows(streamGrowth, streamCounts, streamsOver(k)),
		open: openGrowth(streamCounts, streamsOver(k), func(ctx context.Context, b *bench, dir string, n int) (metrics, error) {
			return measureCrowd(ctx, b, dir, n, k)
		})}
}

// streamClients is the clients of a daemon with many streams.
type streamClients struct {
	at       load.Target
	kind     transport.Kind
	dev      *verbs.Device
	ulp      *verbs.ULP
	peers    []netip.Addr
	sessions []*load.Stream
}

// manyStreams are the limits of both ends, above what the most streams take.
var manyStreams = verbs.Limits{Streams: 40_000, PDs: 40_000, MRs: 1 << 23, Bytes: 1 << 40, CQEntries: 1 << 26, QueueEntries: 1 << 26, IRRQEntries: 1 << 22}

// streamsConfig is that of a daemon at t that exports image to these peers.
func streamsConfig(t load.Target, image string, peers []netip.Addr, k transport.Kind) string {
	var b strings.Builder
	l := manyStreams
	fmt.Fprintf(&b, "listen: {port: %d, udp_port: %d, addresses: [%s]}\nidle: off\nblock: off\n", t.Addr.Port(), t.UDP, t.Addr.Addr())
	fmt.Fprintf(&b, "limits: {sessions: %d, all_sessions: %d, streams: %d, protection_domains: %d, memory_regions: %d, memory: %d, cq_entries: %d, queue_entries: %d, inbound_reads: %d}\npeers:\n",
		sessionsPerPeer, l.Streams, l.Streams, l.PDs, l.MRs, l.Bytes, l.CQEntries, l.QueueEntries, l.IRRQEntries)
	var allow []string
	for i, a := range peers {
		more := ""
		if k == transport.SCTPUDP {
			more = fmt.Sprintf(", udp_port: %d", t.UDP)
		}
		fmt.Fprintf(&b, "  - {name: p%d, address: %s, local_address: %s, port: %d, protection: loopback, transport: %s%s}\n", i, a, t.Addr.Addr(), t.Addr.Port(), k, more)
		allow = append(allow, fmt.Sprintf("p%d", i))
	}
	fmt.Fprintf(&b, "exports:\n  - {name: %s, path: %q, allow: [%s]}\n", load.Export, image, strings.Join(allow, ", "))
	return b.String()
}

func measureCrowd(ctx context.Context, b *bench, dir string, n int, k transport.Kind) (m metrics, err error) {
	c := &streamClients{kind: k}
	for i := range max(1, n/streamsPerSession/sessionsPerPeer) {
		c.peers = append(c.peers, netip.AddrFrom4([4]byte{127, 66, byte(i / 250), byte(1 + i%250)}))
	}
	home := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	udp, err := freeUDPPort(home)
	if err != nil {
		return nil, err
	}
	image := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(image, make([]byte, 16<<20), 0o600); err != nil {
		return nil, err
	}
	d := &daemon{name: "daemon", binary: b.ironwarp, dir: filepath.Join(dir, "d")}
	c.at = load.Target{Addr: netip.AddrPortFrom(home, uint16(port)), UDP: udp.Port(), Control: d.socket()}
	p, err := d.start(ctx, streamsConfig(c.at, image, c.peers, k))
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if c.dev, err = verbs.Open(verbs.Config{Limits: manyStreams}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if c.ulp, err = c.dev.NewULP("streamClients", verbs.ULPConfig{}); err != nil {
		return nil, err
	}
	empty, err := useOf(p.pid())
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := c.dial(ctx, n/streamsPerSession); err != nil {
		return nil, errors.Join(err, p.alive())
	}
	rate := float64(n) / time.Since(start).Seconds()
	if m, err = p.idle(ctx, n, streamsIdle); err != nil {
		return nil, err
	}
	m["rate"] = rate
	m["memory"] -= empty.resident / float64(n)
	client := api.NewClient(c.at.Control)
	defer client.Close()
	if m["status"], err = shortest(n, 3, func() error {
		st, err := client.Status(ctx)
		if err == nil && len(st.Streams) != n {
			err = fmt.Errorf("the daemon has %d streams, and should have %d", len(st.Streams), n)
		}
		return err
	}); err != nil {
		return nil, err
	}
	busy, err := c.latency(ctx)
	if err != nil {
		return nil, err
	}
	m["p50"], m["p99"] = busy["p50"], busy["p99"]
	return m, nil
}

// dial opens the sessions.
func (c *streamClients) dial(ctx context.Context, n int) error {
	c.sessions = make([]*load.Stream, n)
	return inParallel(n, dialsAtOnce, func(i int) (err error) {
		c.sessions[i], err = load.Join(ctx, c.ulp, c.at, c.peers[i%len(c.peers)], c.kind, load.Session{Name: fmt.Sprintf("session %d", i), Export: load.Export, Conns: streamsPerSession, QueueDepth: 4})
		if err != nil {
			err = fmt.Errorf("open session %d of %d: %w", i, n, err)
		}
		return err
	})
}

// close ends all sessions.
func (c *streamClients) close() error {
	err := inParallel(len(c.sessions), dialsAtOnce, func(i int) error {
		if c.sessions[i] == nil {
			return nil
		}
		return c.sessions[i].Close()
	})
	return errors.Join(err, c.dev.Close())
}

// latency has some sessions read now and then, and measures how long that takes.
func (c *streamClients) latency(ctx context.Context) (metrics, error) {
	var mu sync.Mutex
	var took []time.Duration
	n := max(1, len(c.sessions)/busyPart)
	end := time.Now().Add(busyTime)
	err := inParallel(n, n, func(i int) error {
		next := time.Now().Add(busyEvery * time.Duration(i) / time.Duration(n)) // not all at the same time
		for next.Before(end) {
			select {
			case <-time.After(time.Until(next)):
			case <-ctx.Done():
				return ctx.Err()
			}
			start := time.Now()
			if err := c.sessions[i*busyPart%len(c.sessions)].Read(ctx, busyRead); err != nil {
				return err
			}
			mu.Lock()
			took = append(took, time.Since(start))
			mu.Unlock()
			next = next.Add(busyEvery)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return percentiles(took)
}
