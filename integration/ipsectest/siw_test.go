package ipsectest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/siw"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/profile"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
)

// siwCase is a setup with the Linux kernel's soft-iWARP at the other end of the SA. Our
// side always has a Manager.
type siwCase struct {
	name   string
	dial   bool // we connect to siw
	v6     bool
	mode   profile.Mode
	byHand bool // siw's host has a strongSwan that was configured by hand, with traps, and no Manager
	core   bool // run all cases that depend on how segments travel, not just three
}

func siwCases() []siwCase {
	return []siwCase{
		{name: "we connect, siw's SA by hand", dial: true, byHand: true, core: true},
		{name: "siw connects, siw's SA by hand", byHand: true, mode: profile.Transport, core: true},
		{name: "we connect, a Manager on both hosts", dial: true, mode: profile.Transport},
		{name: "siw connects, a Manager on both hosts", v6: true},
	}
}

func (c siwCase) String() string {
	s, network := "we connect to siw", "IPv4"
	if !c.dial {
		s = "siw connects to us"
	}
	if c.v6 {
		network = "IPv6"
	}
	who := "a Manager on both hosts"
	if c.byHand {
		who = "siw's host has a strongSwan configured by hand, with traps"
	}
	return fmt.Sprintf("%s, %s, %v mode; %s", s, network, c.mode, who)
}

// setUp configures both hosts.
func (c siwCase) setUp(t *testing.T, p *pair) {
	t.Helper()
	peer := func(h *host) pad.Peer {
		cfg := p.peerOf(h)
		cfg.Profile = profile.Default()
		cfg.Profile.Mode = c.mode
		return cfg
	}
	// librdmacm takes ten seconds to find a neighbour to which there was no traffic yet.
	if err := tryClear(t, p.beta.Host, netip.AddrPortFrom(p.alpha.at(), 9), 10*time.Second); err == nil {
		t.Fatal("there is a service on the discard port")
	}
	ours, theirs := peer(p.alpha), peer(p.beta)
	// The Manager on siw's host does not know when siw dials.
	theirs.OnDemand = false
	p.awaitCharon(t)
	if err := p.alpha.m.AddPeer(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	if c.byHand {
		swanctlConf{local: theirs.Local, remote: theirs.Remote, localID: theirs.LocalID, remoteID: theirs.RemoteID, mode: c.mode, start: "trap", key: p.key}.load(t, p.beta.Host)
		return
	}
	if err := p.beta.m.AddPeer(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	eventually(t, "siw's host has an SA", func() bool { return installed(t, p.beta, "alpha-out") > 0 })
}

// startSiw gives a host an RDMA device on its wire and returns its name.
func startSiw(t *testing.T, h *lab.Host) string {
	t.Helper()
	device := "siw" + h.Name()
	if _, err := h.Run(t.Context(), "rdma", "link", "add", device, "type", "siw", "netdev", h.Dev()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := h.Run(context.Background(), "rdma", "link", "del", device); err != nil {
			t.Error(err)
		}
	})
	return device
}

func TestKernelESPWithSiwInside(t *testing.T) {
	agent := siwAgent(t)
	for _, tc := range siwCases() {
		t.Run(tc.name, func(t *testing.T) {
			row(t, tc.String())
			p := kernelPair(t)
			p.alpha.v6, p.beta.v6 = tc.v6, tc.v6
			device := startSiw(t, p.beta.Host)
			tc.setUp(t, p)
			wire := capture(t, p.beta)
			l := siw.Lab{Agent: agent, Namespace: p.beta.Namespace(), Device: device, Protector: p.alpha.m, NetNS: p.alpha.NetNS(),
				Siw: p.beta.at(), Ours: p.alpha.at()}
			// No CRC: ESP protects better, and siw computes a wrong one where the padding and
			// the CRC of an FPDU come in two segments (siw_get_trailer).
			v := siw.Variant{Dial: tc.dial, IPv6: tc.v6}
			pairs := l.Open(t, v, port)
			n := 0
			for _, c := range siw.Cases() {
				for _, siwActs := range []bool{false, true} {
					if siw.Lacking(c, siwActs) != 0 || !(tc.core && c.Core || slices.Contains([]string{"send", "write", "read"}, c.Name)) {
						continue
					}
					pairs.Run(t, c, siwActs, func(siw.Result) { n++ })
				}
			}
			ends := map[string]func() error{
				p.alpha.Name(): func() error { return deleted(p.alpha.m.DeleteChild(t.Context(), p.beta.Name(), "")) },
				p.beta.Name():  func() error { return deleted(p.beta.m.DeleteChild(t.Context(), p.alpha.Name(), "")) },
			}
			if tc.byHand {
				ends[p.beta.Name()] = func() error {
					_, err := swanctl(t, p.beta.Host, "--terminate", "--child", swanctlChild)
					return err
				}
			}
			ours, theirs := pairs.Connect(t)
			var stall time.Duration
			if !t.Failed() {
				stall = streamThroughDeletes(t, ours, theirs, tc.byHand, ends)
			}
			counts := counted(t, wire)
			detail(t, "%d cases of the conformance suite; one stream outlived a delete by either host, longest stall %d ms; on the wire %d packets in ESP, %d in clear",
				n, stall.Milliseconds(), counts.ESP, counts.Clear(port))
			if counts.Clear(port) != 0 || counts.ESP == 0 {
				t.Errorf("on the wire: %v", counts)
			}
		})
	}
}

func deleted(n int, err error) error {
	if err == nil && n == 0 {
		return fmt.Errorf("there was no child to delete")
	}
	return err
}

// streamThroughDeletes moves memory back and forth by RDMA Write and Read, posted by
// either end in turn, while the child SA is deleted by one host and by the other. Then
// siw is the first with data to send, if it can bring the SA back. It returns the
// longest time that an operation took.
func streamThroughDeletes(t *testing.T, ours, theirs conformance.Endpoint, siwFirst bool, deletes map[string]func() error) (stall time.Duration) {
	t.Helper()
	const size, rounds = 16 << 10, 4
	access := conformance.LocalWrite | conformance.RemoteWrite | conformance.RemoteRead
	var memory [2]conformance.Region
	ends := [2]conformance.Endpoint{ours, theirs}
	for i, e := range ends {
		r, err := e.Region(2*size, access)
		if err != nil {
			t.Fatal(err)
		}
		memory[i] = r
	}
	names := make([]string, 0, len(deletes))
	for name := range deletes {
		names = append(names, name)
	}
	slices.SortFunc(names, strings.Compare)
	random := rand.New(rand.NewPCG(1, 2))
	for _, who := range append([]string{""}, names...) {
		if who != "" {
			if err := deletes[who](); err != nil {
				t.Fatalf("delete on %s: %v", who, err)
			}
		}
		for round := range rounds {
			acts := round % 2
			if siwFirst {
				acts = 1 - acts
			}
			data := canary.Bytes(size)
			binary.LittleEndian.PutUint64(data, random.Uint64())
			begin := time.Now()
			if err := writeAndReadBack(t.Context(), ends[acts], memory[acts], memory[1-acts], data); err != nil {
				t.Fatalf("after a delete on %q, end %d: %v", who, acts, err)
			}
			stall = max(stall, time.Since(begin))
		}
	}
	return stall
}

// writeAndReadBack puts data into the peer's memory and fetches it into the second half
// of its own.
func writeAndReadBack(ctx context.Context, e conformance.Endpoint, own, peer conformance.Region, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := e.Store(own, 0, data); err != nil {
		return err
	}
	for i, wr := range []conformance.WR{
		{Op: conformance.OpWrite, SGL: []conformance.SGE{{Region: own, Len: len(data)}}},
		{Op: conformance.OpRead, SGL: []conformance.SGE{{Region: own, Off: len(data), Len: len(data)}}},
	} {
		wr.ID, wr.Flags, wr.STag, wr.TO = uint64(i), conformance.Signaled, peer.STag, peer.TO
		if err := e.PostSend(wr); err != nil {
			return err
		}
		if wc, err := e.Completion(ctx); err != nil || wc.Status != conformance.OK {
			return fmt.Errorf("%v: %+v, %w", wr.Op, wc, err)
		}
	}
	got, err := e.Load(own, len(data), len(data))
	if err == nil && !bytes.Equal(got, data) {
		err = fmt.Errorf("what comes back differs")
	}
	return err
}
