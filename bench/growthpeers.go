package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/charon/charontest"
)

// Many peers of one daemon, each with a guard in the kernel and with SAs. No host
// plays them: a VICI server answers as strongSwan would if they existed.

var peerCounts = []int{10, 100, 1000}

func peersOf(n int) string { return fmt.Sprintf("%d peers", n) }

var peerGrowth = []growth{
	{what: "start, for each peer, until all have SAs", metric: "start", unit: "ms", scale: 1e3},
	{what: "reload without a change, for each peer", metric: "reload", unit: "us", scale: 1e6},
	{what: "reload with one peer's change, for each peer", metric: "change", unit: "us", scale: 1e6},
	{what: "list of SAs, for each peer", metric: "list", unit: "us", scale: 1e6},
	{what: "status, for each peer", metric: "status", unit: "us", scale: 1e6},
	{what: "memory of a peer", metric: "memory", unit: "KiB", scale: 1.0 / 1024},
	{what: "CPU of an idle peer", metric: "cpu", unit: "us/s", scale: 1e6},
	{what: "wake-ups of an idle peer", metric: "wake-ups", unit: "/s"},
}

func peersGroup() group {
	return group{name: "many peers", rounds: 1, cold: true, rows: growthRows(peerGrowth, peerCounts, peersOf), open: openGrowth(peerCounts, peersOf, measurePeers)}
}

// scriptedCharon plays a strongSwan to which all peers answer at once.
type scriptedCharon struct {
	*charontest.Charon
	local netip.Addr
	peers map[string]netip.Addr // by connection

	mu  sync.Mutex // guards the fields below it
	sas map[string]*charontest.SA
	up  int // child SAs
}

// newScriptedCharon makes one for peers; its answers come at once.
func newScriptedCharon(socket string, local netip.Addr, peers map[string]netip.Addr) *scriptedCharon {
	f := &scriptedCharon{Charon: charontest.New(socket), local: local, peers: peers, sas: map[string]*charontest.SA{}}
	f.Plugins = []string{"charon", "openssl", "kernel-netlink", "socket-default", "vici"} // the kernel does ESP
	f.Answer = func(cmd string, req charontest.Tree) ([]string, charontest.Tree) {
		if cmd == "initiate" {
			f.bringUp(req.Str("ike"), req.Str("child"))
		}
		return nil, nil
	}
	return f
}

// bringUp adds a child, and its IKE SA if it is the first.
func (f *scriptedCharon) bringUp(conn, child string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	remote, known := f.peers[conn]
	if !known {
		return
	}
	f.up++
	sa := charontest.SA{Name: conn, Local: f.local, Remote: remote, LocalID: f.local.String(), RemoteID: remote.String(), Children: []charontest.Child{
		{Name: child, LocalTS: fmt.Sprintf("%v/32[tcp]", f.local), RemoteTS: fmt.Sprintf("%v/32[tcp/%d]", remote, espPort)}}}
	list := sa.List(f.up, f.up)
	f.Set(func() { f.SAs = append(f.SAs, list) })
	f.Raise("child-updown", charontest.Tree{{"up", "yes"}, list[0]})
}

// children is how many child SAs there are.
func (f *scriptedCharon) children() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.up
}

// declare writes the declaration of a peer, one of two that differ in a setting
// that does not disturb its streams.
func declare(dir, name string, remote, local netip.Addr, other bool) error {
	reap := "10m"
	if other {
		reap = "20m"
	}
	return os.WriteFile(filepath.Join(dir, "peers.d", name+".yaml"), fmt.Appendf(nil, "name: %s\naddress: %s\nlocal_address: %s\nport: %d\nidle_reap: %s\npsk_file: secrets/%s.psk\n",
		name, remote, local, espPort, reap, name), 0o600)
}

func measurePeers(ctx context.Context, b *bench, dir string, n int) (m metrics, err error) {
	if err := lab.Missing(); err != nil {
		return nil, leftOut(err.Error())
	}
	l, err := lab.New(ctx, lab.Config{NoCharon: true, Dir: dir})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	host := l.Hosts()[0]
	if _, err := host.Run(ctx, "ip", "route", "add", "10.64.0.0/16", "via", l.Hosts()[1].Addr().String()); err != nil {
		return nil, err
	}
	d := &daemon{name: "daemon", binary: b.ironwarp, dir: filepath.Join(dir, "d"), prefix: inside(host)}
	for _, sub := range []string{"", "peers.d", "secrets"} {
		if err := os.Mkdir(filepath.Join(d.dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	peers := map[string]netip.Addr{}
	for i := range n {
		name, addr := fmt.Sprintf("p%d", i), netip.AddrFrom4([4]byte{10, 64, byte(i / 250), byte(1 + i%250)})
		peers[name] = addr
		err := declare(d.dir, name, addr, host.Addr(), false)
		if err := errors.Join(err, auth.GenerateSecret().Save(filepath.Join(d.dir, "secrets", name+".psk"))); err != nil {
			return nil, err
		}
	}
	f := newScriptedCharon(filepath.Join(dir, "vici"), host.Addr(), peers)
	if err := f.Start(); err != nil {
		return nil, err
	}
	defer f.Stop()
	per := float64(n)
	start := time.Now()
	p, err := d.start(ctx, fmt.Sprintf("listen: {port: %d}\nipsec: {vici: %q, data_plane: kernel}\n", espPort, "unix://"+f.Socket))
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := waitFor(ctx, "the SAs of all peers", 2*time.Minute, func() error {
		if got := f.children(); got < n {
			return errors.Join(fmt.Errorf("%d of %d peers have SAs", got, n), p.alive())
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("%w; it printed: %s", err, p.out.String())
	}
	started := time.Since(start).Seconds() / per
	if m, err = p.idle(ctx, n, 2*guardLook); err != nil {
		return nil, err
	}
	m["start"] = started
	c := api.NewClient(d.socket())
	defer c.Close()
	reload := func(changes int) error {
		r, err := c.Reload(ctx)
		if err == nil && len(r.Changed) != changes {
			err = fmt.Errorf("reload: %q has changed, and should have %d", r.Changed, changes)
		}
		return err
	}
	other := false
	for metric, call := range map[string]func() error{
		"reload": func() error { return reload(0) },
		"change": func() error {
			other = !other
			return errors.Join(declare(d.dir, "p0", peers["p0"], host.Addr(), other), reload(1))
		},
		"list": func() error {
			sas, err := c.IKESAs(ctx, "")
			if err == nil && len(sas) < n {
				err = fmt.Errorf("%d SAs are listed of %d", len(sas), n)
			}
			return err
		},
		"status": func() error { _, err := c.Status(ctx); return err },
	} {
		if m[metric], err = shortest(n, 3, call); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// guardLook is how often a daemon compares the kernel's guards with its peers.
const guardLook = 5 * time.Second
