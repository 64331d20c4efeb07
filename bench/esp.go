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

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// The rows through ESP: two hosts in network namespaces with a strongSwan each.
// A stream of Writes and a plain TCP connection take turns, each under SAs of
// its own between the same hosts. Two more hosts have no guard.

// Ports of the hosts: only the first two are guarded.
const (
	espPort     = 7471 // Writes
	espTCPPort  = 7472 // TCP through ESP
	clearPort   = 7473 // TCP outside ESP
	espTime     = 2 * time.Second
	espSetUp    = 30 * time.Second
	espVariable = "IRONWARP_BENCH_ESP"
	roleESP     = "esp"
)

func espRows() []row {
	tcp := []ref{{"TCP through ESP", "rate"}}
	return []row{
		{name: "Write 64 KiB through ESP, large FPDUs, CRC on", unit: "MB/s", scale: 1e-6, aim: 0.9, ours: ref{"Writes through ESP, CRC on", "rate"}, rival: tcp,
			note: "TCP through the same ESP"},
		{name: "Write 64 KiB through ESP, large FPDUs, CRC off", unit: "MB/s", scale: 1e-6, aim: 0.9, ours: ref{"Writes through ESP, CRC off", "rate"}, rival: tcp,
			note: "TCP through the same ESP"},
		{name: "TCP 64 KiB outside ESP on a host with a guard", unit: "GB/s", scale: 1e-9, aim: 0.95, ours: ref{"TCP beside a guard", "rate"},
			rival: []ref{{"TCP without a guard", "rate"}}, note: "hosts without one"},
	}
}

// espSettings is what a server through ESP has to know.
type espSettings struct {
	VICI          string
	Secret        string // path
	Local, Remote netip.Addr
}

// peers are the two links between the hosts, as one of them sees them.
func (s espSettings) peers() ([]pad.Peer, error) {
	secret, err := auth.LoadSecret(s.Secret)
	if err != nil {
		return nil, err
	}
	var all []pad.Peer
	for name, port := range map[string]uint16{"writes": espPort, "tcp": espTCPPort} {
		id := func(a netip.Addr) string { return fmt.Sprintf("%s-%x.bench", name, a.AsSlice()) }
		all = append(all, pad.Peer{Name: name, Local: s.Local, Remote: s.Remote, LocalID: id(s.Local), RemoteID: id(s.Remote), Port: port, PSK: secret, OnDemand: true})
	}
	return all, nil
}

// manage runs a Manager with both links.
func (s espSettings) manage(ctx context.Context, netns string) (m *ipsec.Manager, closer io.Closer, err error) {
	peers, err := s.peers()
	if err != nil {
		return nil, nil, err
	}
	m, err = ipsec.New(ipsec.Config{Socket: s.VICI, NetNS: netns})
	if err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- m.Run(context.Background()) }()
	closer = closeFunc(func() error {
		err := m.Close()
		return errors.Join(err, <-ended)
	})
	for _, p := range peers {
		if err := m.AddPeer(ctx, p); err != nil {
			return nil, nil, errors.Join(err, closer.Close())
		}
	}
	return m, closer, nil
}

// serveESP is the host that is written to. It listens on all three ports.
func serveESP(ctx context.Context, listen string) (string, error) {
	var s espSettings
	if err := json.Unmarshal([]byte(os.Getenv(espVariable)), &s); err != nil {
		return "", fmt.Errorf("%s: %w", espVariable, err)
	}
	m, _, err := s.manage(ctx, "") // until the process ends
	if err != nil {
		return "", err
	}
	for _, port := range []uint16{espTCPPort, clearPort} {
		if _, err := serveTCP(ctx, netip.AddrPortFrom(s.Local, port).String()); err != nil {
			return "", err
		}
	}
	return serveRDMA(variant{protector: m})(ctx, netip.AddrPortFrom(s.Local, espPort).String())
}

// openESP makes the hosts.
func openESP(ctx context.Context, b *bench, names []string) (_ []contender, _ io.Closer, err error) {
	if err := lab.Missing(); err != nil {
		return nil, nil, leftOut(err.Error())
	}
	var open closers
	defer func() {
		if err != nil {
			err = errors.Join(err, open.Close())
		}
	}()
	l, err := lab.New(ctx, lab.Config{Hosts: []string{"alpha", "beta", "gamma", "delta"}, NoCharon: true})
	if err != nil {
		return nil, nil, err
	}
	open = append(open, l)
	alpha, beta, gamma, delta := l.Host("alpha"), l.Host("beta"), l.Host("gamma"), l.Host("delta")
	for _, h := range []*lab.Host{alpha, beta} {
		if err := h.StartCharon(ctx); err != nil {
			return nil, nil, err
		}
	}
	secret := filepath.Join(l.Dir(), "psk")
	if err := auth.GenerateSecret().Save(secret); err != nil {
		return nil, nil, err
	}
	settings, err := json.Marshal(espSettings{VICI: beta.ViciSocket(), Secret: secret, Local: beta.Addr(), Remote: alpha.Addr()})
	if err != nil {
		return nil, nil, err
	}
	writes := newPeer(roleESP, "", espTime, "ip", "netns", "exec", beta.Namespace(), "env", espVariable+"="+string(settings))
	plain := newPeer(roleTCP, netip.AddrPortFrom(delta.Addr(), clearPort).String(), espTime, "ip", "netns", "exec", delta.Namespace())
	for _, p := range []*peer{writes, plain} {
		if err := p.start(ctx, b); err != nil {
			return nil, nil, err
		}
		open = append(open, p)
	}
	m, closer, err := espSettings{VICI: alpha.ViciSocket(), Secret: secret, Local: alpha.Addr(), Remote: beta.Addr()}.manage(ctx, alpha.NetNS())
	if err != nil {
		return nil, nil, err
	}
	open = append(open, closer)
	through := *writes // the same process, another port
	through.addr = netip.AddrPortFrom(beta.Addr(), espTCPPort).String()
	beside := *writes
	beside.addr = netip.AddrPortFrom(beta.Addr(), clearPort).String()
	esp := func(v variant) variant { v.protector = m; return v }
	all := map[string]func(context.Context) (metrics, error){
		"Writes through ESP, CRC on":  inHost(alpha, rdmaStreams(writes, esp(largeCRC), 1, 64<<10, targetSize)),
		"Writes through ESP, CRC off": inHost(alpha, rdmaStreams(writes, esp(largeNoCRC), 1, 64<<10, targetSize)),
		"TCP through ESP":             withSA(m, through.addr, inHost(alpha, tcpStreams(&through, 1, 64<<10))),
		"TCP beside a guard":          inHost(alpha, tcpStreams(&beside, 1, 64<<10)),
		"TCP without a guard":         inHost(gamma, tcpStreams(plain, 1, 64<<10)),
	}
	var cs []contender
	for _, n := range names {
		cs = append(cs, contender{n, all[n]})
	}
	return cs, open, nil
}

// inHost dials from a host.
func inHost(h *lab.Host, run func(context.Context) (metrics, error)) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (m metrics, err error) {
		return m, h.Do(func() (err error) {
			m, err = run(ctx)
			return err
		})
	}
}

// withSA brings an SA up before a plain connection needs it.
func withSA(m *ipsec.Manager, addr string, run func(context.Context) (metrics, error)) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		remote, err := netip.ParseAddrPort(addr)
		if err != nil {
			return nil, err
		}
		wait, cancel := context.WithTimeout(ctx, espSetUp)
		defer cancel()
		if err := m.Prepare(wait, transport.Flow{Protocol: transport.ProtoTCP, Remote: remote}); err != nil {
			return nil, err
		}
		return run(ctx)
	}
}
