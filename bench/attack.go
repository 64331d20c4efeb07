package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/ironwarp/ironwarp/integration/attack/load"
	"github.com/ironwarp/ironwarp/transport"
)

// roleAttackers is the attackers' process; its argument is an assault.
const roleAttackers = "attackers"

// assault is what the attackers' process is to do.
type assault struct {
	Attack string
	Target load.Target
	From   []netip.Addr
}

const (
	// attackTime is how long a stream is measured under an attack, for bandwidth and
	// for latency each, after attackBegins.
	attackTime   = 700 * time.Millisecond
	attackBegins = 300 * time.Millisecond
	// stallLimit is how long a stream may do nothing; a run in which it does
	// nothing for longer counts as a rate of zero.
	stallLimit = 10 * time.Second
)

// alone and behaving are what an attack is measured against: nobody else, and as
// many peers as attack, each of which reads as much as it gets.
func alone(k transport.Kind) string    { return "alone over " + k.String() }
func behaving(k transport.Kind) string { return load.Behaving(k).Name }

// attackers starts an assault that lasts until this process ends.
func attackers(ctx context.Context, spec string) (string, error) {
	var a assault
	if err := json.Unmarshal([]byte(spec), &a); err != nil {
		return "", err
	}
	for _, x := range append(load.Attacks(), load.Behaving(transport.TCP), load.Behaving(transport.SCTPUDP)) {
		if x.Name == a.Attack {
			x.Start(ctx, a.Target, a.From)
			return "", nil
		}
	}
	return "", fmt.Errorf("no attack %q", a.Attack)
}

// openAttacks makes what all daemons under attack export. Each is attacked once: it
// blocks those who did.
func openAttacks(_ context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
	dir, err := os.MkdirTemp("", "ironwarp-bench-")
	if err != nil {
		return nil, nil, err
	}
	open := closeFunc(func() error { return os.RemoveAll(dir) })
	image := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(image, make([]byte, 16<<20), 0o600); err != nil {
		return nil, nil, errors.Join(err, open.Close())
	}
	all := map[string]func(context.Context) (metrics, error){}
	add := func(name, attack string, k transport.Kind) {
		all[name] = func(ctx context.Context) (metrics, error) { return underAttack(ctx, b, image, attack, k) }
	}
	for _, k := range []transport.Kind{transport.TCP, transport.SCTPUDP} {
		add(alone(k), "", k)
		add(behaving(k), behaving(k), k)
	}
	for _, x := range load.Attacks() {
		add(x.Name, x.Name, x.Carrier)
	}
	var cs []contender
	for _, n := range names {
		if all[n] == nil {
			return nil, nil, errors.Join(fmt.Errorf("no contender %q", n), open.Close())
		}
		cs = append(cs, contender{n, all[n]})
	}
	return cs, open, nil
}

// startTarget starts a daemon that exports image to as many peers as attack, and two
// more.
func startTarget(ctx context.Context, b *bench, image string) (v load.Target, peers []netip.Addr, _ *process, err error) {
	home := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	port, err := freePort()
	if err != nil {
		return v, nil, nil, err
	}
	udp, err := freeUDPPort(home)
	if err != nil {
		return v, nil, nil, err
	}
	d := &daemon{name: "target", binary: b.ironwarp, dir: filepath.Join(filepath.Dir(image), "target")}
	if err := os.RemoveAll(d.dir); err != nil { // of the one before
		return v, nil, nil, err
	}
	v = load.Target{Addr: netip.AddrPortFrom(home, uint16(port)), UDP: udp.Port(), Control: filepath.Join(d.run(), "ironwarp.sock")}
	config, peers := load.Config(v, image)
	p, err := d.start(ctx, config)
	if err != nil {
		return v, nil, nil, err
	}
	if err := p.ready(ctx, func() error { return reachable(ctx, v, peers[0]) }); err != nil {
		return v, nil, nil, errors.Join(err, p.Close())
	}
	return v, peers, p, nil
}

// reachable reports whether the daemon takes streams.
func reachable(ctx context.Context, v load.Target, from netip.Addr) error {
	for _, k := range []transport.Kind{transport.TCP, transport.SCTPUDP} {
		s, err := load.Dial(ctx, v, from, k, load.Export)
		if err != nil {
			return err
		}
		if err := s.Close(); err != nil {
			return err
		}
	}
	return nil
}

// underAttack measures a stream of a daemon's first peer while those behind the
// second attack.
func underAttack(ctx context.Context, b *bench, image, attack string, k transport.Kind) (m metrics, err error) {
	v, peers, target, err := startTarget(ctx, b, image)
	if err != nil {
		return nil, err
	}
	defer target.Close()
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, stallLimit)
	defer cancel()
	defer func() {
		if whole.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			m, err = metrics{"rate": 0, "p50": stallLimit.Seconds(), "p99": stallLimit.Seconds()}, nil
		}
	}()
	s, err := load.Dial(ctx, v, peers[0], k, load.Export)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if attack != "" {
		spec, err := json.Marshal(assault{attack, v, peers[2:]})
		if err != nil {
			return nil, err
		}
		p := newPeer(roleAttackers, string(spec), attackTime)
		if err := p.start(ctx, b); err != nil {
			return nil, err
		}
		defer p.Close()
	}
	if _, err := s.Bandwidth(ctx, attackBegins); err != nil {
		return nil, err
	}
	rate, err := s.Bandwidth(ctx, attackTime)
	if err != nil {
		return nil, err
	}
	median, p99, err := s.Latency(ctx, attackTime)
	return metrics{"rate": rate, "share": rate / (1 + load.Attackers), "p50": median.Seconds(), "p99": p99.Seconds()}, err
}

// attackRows are what each attack does to a stream of a peer that behaves.
func attackRows() []row {
	var rows []row
	for _, k := range []transport.Kind{transport.TCP, transport.SCTPUDP} {
		rows = append(rows,
			row{name: "under attack: nobody attacks, " + k.String() + ", bandwidth", unit: "MB/s", scale: 1e-6, ours: ref{alone(k), "rate"}, rival: []ref{{behaving(k), "rate"}}},
			row{name: "under attack: nobody attacks, " + k.String() + ", latency p99", unit: "us", scale: 1e6, less: true, ours: ref{alone(k), "p99"}, rival: []ref{{behaving(k), "p99"}}})
	}
	for _, x := range load.Attacks() {
		rows = append(rows,
			row{name: "under attack: " + x.Name + ", bandwidth", unit: "MB/s", scale: 1e-6, aim: 0.5, ours: ref{x.Name, "rate"}, rival: []ref{{alone(x.Carrier), "share"}}},
			row{name: "under attack: " + x.Name + ", latency p99", unit: "us", scale: 1e6, less: true, aim: 5, ours: ref{x.Name, "p99"}, rival: []ref{{behaving(x.Carrier), "p99"}}})
	}
	return rows
}
