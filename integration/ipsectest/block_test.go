package ipsectest

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// blockOf returns the block of a peer on a host.
func blockOf(t *testing.T, h *host, peer string) guard.Block {
	t.Helper()
	for _, b := range h.m.Blocks() {
		if b.Peer == peer {
			return b
		}
	}
	return guard.Block{}
}

// dropped counts what a peer's block has dropped.
func dropped(t *testing.T, h *host, peer string) uint64 { return blockOf(t, h, peer).Packets }

func block(t *testing.T, h *host, peer string, d time.Duration) {
	t.Helper()
	if err := h.m.Block(t.Context(), peer, d, "too many\nstreams"); err != nil {
		t.Fatal(err)
	}
}

func unblock(t *testing.T, h *host, peer string) {
	t.Helper()
	if err := h.m.Unblock(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
}

// overAll runs a test over each kind of carrier and family.
func overAll(t *testing.T, what string, cfg lab.Config, test func(*testing.T, *pair)) {
	t.Helper()
	for _, f := range families {
		for _, k := range append([]struct {
			name string
			kind transport.Kind
		}{{"TCP", transport.TCP}}, associations...) {
			t.Run(k.name+" "+f.name, func(t *testing.T) {
				row(t, k.name+", "+f.name+": "+what)
				p := newPairOf(t, k.kind, cfg)
				p.alpha.v6, p.beta.v6 = f.v6, f.v6
				test(t, p)
			})
		}
	}
}

// briefly opens a stream that is not expected to come up.
func (p *pair) briefly(t *testing.T, from *host) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	cfg := transport.Config{Kind: p.kind, Protector: from.m, Local: from.at()}
	to := netip.AddrPortFrom(p.other(from).at(), port)
	return from.Do(func() error {
		if p.kind == transport.TCP {
			c, err := transport.Dial(ctx, to, &cfg)
			if err == nil {
				c.Close()
			}
			return err
		}
		a, err := transport.DialSCTP(ctx, to, &cfg, newInbox)
		if err == nil {
			a.Close()
		}
		return err
	})
}

// TestBlockedPeerReachesNothing is RFC 5042 6.4.1's network layer filter: neither
// the stream that a peer has nor a new one brings anything in, through ESP, until
// the block is ended.
func TestBlockedPeerReachesNothing(t *testing.T) {
	overAll(t, "a blocked peer reaches nothing through its SA; it does before and after", lab.Config{}, func(t *testing.T, p *pair) {
		p.addPeers(t)
		var ending atomic.Bool // the block's filter is removed first: what then still comes is refused as blocked
		p.echo(t, p.beta, func(err error) {
			if !ending.Load() {
				t.Errorf("a flow of the blocked peer got as far as the listener: %v", err)
			}
		})
		c := p.mustOpen(t, p.alpha)
		if err := ping(c, "before"); err != nil {
			t.Fatal(err)
		}
		block(t, p.beta, "alpha", time.Hour)
		if err := pingWithin(c, "blocked", 500*time.Millisecond); err == nil {
			t.Error("a stream of a blocked peer is served")
		}
		eventually(t, "a packet of the stream is dropped", func() bool { return dropped(t, p.beta, "alpha") > 0 })
		n := dropped(t, p.beta, "alpha")
		// A busy machine may end an attempt before its first packet has arrived.
		eventually(t, "packets of a new stream are dropped", func() bool {
			if err := p.briefly(t, p.alpha); err == nil {
				t.Fatal("a blocked peer has opened a stream")
			}
			return dropped(t, p.beta, "alpha") > n
		})
		if b := blockOf(t, p.beta, "alpha"); b.Why != "too many streams" || b.Addr != p.alpha.at() || time.Until(b.Until) > time.Hour {
			t.Errorf("the list: %+v", b)
		}
		eventually(t, "who dials a blocked peer is told", func() bool {
			err := p.briefly(t, p.beta)
			if err == nil {
				t.Fatal("a blocked peer was dialled")
			}
			return errors.Is(err, ipsec.ErrBlocked) && strings.Contains(err.Error(), "too many streams")
		})
		ending.Store(true)
		unblock(t, p.beta, "alpha")
		if err := ping(p.mustOpen(t, p.alpha), "after"); err != nil {
			t.Error(err)
		}
	})
}

// TestBlockStopsNothingElse checks the other traffic of the blocked host, its SAs, and
// another peer.
func TestBlockStopsNothingElse(t *testing.T) {
	p := newPair(t, lab.Config{Hosts: []string{"alpha", "beta", "gamma"}})
	p.addPeers(t)
	gamma := newHost(t, p.lab.Host("gamma"))
	for _, h := range []*host{gamma, p.beta} {
		o := gamma
		if h == gamma {
			o = p.beta
		}
		if err := h.m.AddPeer(t.Context(), pad.Peer{Name: o.Name(), Local: h.at(), Remote: o.at(), LocalID: h.Name(), RemoteID: o.Name(), Port: port, PSK: p.key, OnDemand: true}); err != nil {
			t.Fatal(err)
		}
	}
	p.awaitCharon(t)
	p.beta.echo(t, nil)
	k := talk(gamma.mustDial(t, p.beta))
	k.moves(t, 10)
	if err := ping(p.alpha.mustDial(t, p.beta), "before"); err != nil {
		t.Fatal(err)
	}
	block(t, p.beta, "alpha", time.Hour)
	clearListener(t, p.beta.Host, netip.AddrPortFrom(p.beta.Addr(), port+1))
	if err := tryClear(t, p.alpha.Host, netip.AddrPortFrom(p.beta.Addr(), port+1), 20*time.Second); err != nil {
		t.Errorf("another port: %v", err)
	}
	deleteIKE(t, p.alpha, "beta")
	if err := p.prepare(t); err != nil {
		t.Errorf("an SA of a blocked peer: %v", err)
	}
	k.moves(t, 10)
	k.end(t)
	if n := dropped(t, p.beta, "gamma"); n > 0 {
		t.Errorf("%d packets of another peer were dropped", n)
	}
}

// TestBlockEndsInTheKernelAndOpensNothing lets a block expire while no process could
// end it, and checks the guard.
func TestBlockEndsInTheKernelAndOpensNothing(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	if err := p.prepare(t); err != nil {
		t.Fatal(err)
	}
	before := guardOf(t, p.beta)
	block(t, p.beta, "alpha", 3*time.Second)
	until := blockOf(t, p.beta, "alpha").Until
	p.beta.stop()
	have, err := guard.ListBlocks(p.beta.NetNS())
	if err != nil || len(have) != 1 && time.Now().Before(until) {
		t.Errorf("after the end of the process: %v, %v", have, err)
	}
	eventually(t, "the block ends by itself", func() bool {
		have, err := guard.ListBlocks(p.beta.NetNS())
		return err == nil && len(have) == 0
	})
	if time.Now().Before(until.Add(-time.Second)) {
		t.Error("it ended too early")
	}
	if after := guardOf(t, p.beta); !slices.Equal(before, after) {
		t.Errorf("the guard was %v, and is %v", before, after)
	}
	if err := p.alpha.m.RemoveGuard(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	clearListener(t, p.beta.Host, netip.AddrPortFrom(p.beta.Addr(), port))
	was := stoppedInbound(t, p.beta)
	// As long as there is an SA, alpha's packets go through it, and the manager would
	// bring one up for packets that wait.
	p.alpha.stop()
	if err := p.alpha.StopCharon(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the guard counts a clear packet after the block", func() bool {
		if err := tryClear(t, p.alpha.Host, netip.AddrPortFrom(p.beta.Addr(), port), 500*time.Millisecond); err == nil {
			t.Fatal("a clear connection after the block was accepted")
		}
		return stoppedInbound(t, p.beta) > was
	})
}

// TestBlockOutlivesItsProcess: a new process finds the block, refuses by it, and ends
// it.
func TestBlockOutlivesItsProcess(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	block(t, p.beta, "alpha", time.Hour)
	was := blockOf(t, p.beta, "alpha")
	p.beta.stop()
	p.beta.start(t)
	t.Cleanup(func() { p.beta.stop() })
	b := blockOf(t, p.beta, "alpha")
	if b.Why != was.Why || b.Addr != was.Addr || b.Until.Sub(was.Until).Abs() > time.Minute || b.Since.Sub(was.Since).Abs() > time.Minute {
		t.Errorf("found %+v, left %+v", b, was)
	}
	if err := p.beta.m.AddPeer(t.Context(), p.peerOf(p.beta)); err != nil {
		t.Fatal(err)
	}
	p.awaitCharon(t)
	p.beta.echo(t, nil)
	if err := p.briefly(t, p.alpha); err == nil {
		t.Error("the peer is not blocked any more")
	}
	eventually(t, "the new process refuses the peer", func() bool { return errors.Is(p.briefly(t, p.beta), ipsec.ErrBlocked) })
	unblock(t, p.beta, "alpha")
	if err := ping(p.alpha.mustDial(t, p.beta), "after"); err != nil {
		t.Error(err)
	}
}

// TestBlockIsPutBackWhenSomebodyTakesItAway flushes nf_tables, as a firewall's reload
// does.
func TestBlockIsPutBackWhenSomebodyTakesItAway(t *testing.T) {
	p := newPair(t, lab.Config{NoCharon: true})
	if err := p.beta.m.AddPeer(t.Context(), p.peerOf(p.beta)); err != nil {
		t.Fatal(err)
	}
	block(t, p.beta, "alpha", time.Hour)
	events, stop := p.beta.m.Events()
	defer stop()
	table := &nftables.Table{Name: "ironwarp-block", Family: nftables.TableFamilyINet}
	for what, change := range map[string]func(c *nftables.Conn){
		"all of nf_tables": func(c *nftables.Conn) { c.FlushRuleset() },
		"the table":        func(c *nftables.Conn) { c.DelTable(table) },
		"the rules":        func(c *nftables.Conn) { c.FlushTable(table) },
		"the elements":     func(c *nftables.Conn) { c.FlushSet(&nftables.Set{Table: table, Name: "peers4"}) },
	} {
		err := p.beta.Do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			change(c)
			return c.Flush()
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		eventually(t, what+" is put back", func() bool {
			have, err := guard.ListBlocks(p.beta.NetNS())
			faults, err2 := guard.BlockFaults(p.beta.NetNS())
			return err == nil && err2 == nil && len(have) == 1 && time.Until(have[0].Until) > 50*time.Minute && len(faults) == 0
		})
		for repaired := false; !repaired; {
			e := <-events
			repaired = e.Kind == ipsec.EventBlockRepair && e.Peer == "alpha"
		}
	}
}

// TestBlockCountsPacketsOfEveryKind sends clear packets with the peer's address,
// fragments as well: the block recognises what it drops by the port alone.
func TestBlockCountsPacketsOfEveryKind(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			p, mallory := hostile(t, lab.Config{NoCharon: true})
			p.alpha.v6, p.beta.v6 = f.v6, f.v6
			cfg := p.peerOf(p.beta)
			cfg.Links = []pad.Link{linkOf(transport.TCP), linkOf(transport.SCTPUDP), linkOf(transport.SCTP)}
			if err := p.beta.m.AddPeer(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			block(t, p.beta, "alpha", time.Hour)
			awaitWay(t, mallory.Host, p.beta.at())
			at := func(h *host, port uint16) netip.AddrPort { return netip.AddrPortFrom(h.at(), port) }
			udp := func(from, to uint16) []byte {
				return datagram{at(p.alpha, from), at(p.beta, to), make([]byte, 600)}.packet()
			}
			tcp := func(from, to uint16) []byte {
				return segment{from: at(p.alpha, from), to: at(p.beta, to), seq: 1, flags: flagSYN}.packet()
			}
			assoc := func(from, to uint16) []byte {
				b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
				return header(p.alpha.at(), p.beta.at(), unix.IPPROTO_SCTP, append(b, make([]byte, 12)...))
			}
			for _, tc := range []struct {
				name    string
				packets [][]byte
				want    uint64
			}{
				{"other ports", [][]byte{udp(4711, udpPort+1), tcp(4711, port+1), assoc(4711, port+1), udp(port, port), tcp(udpPort, udpPort)}, 0},
				{"the peer's neighbour", [][]byte{segment{from: netip.AddrPortFrom(p.alpha.at().Next().Next(), 4711), to: at(p.beta, port), flags: flagSYN}.packet()}, 0},
				{"TCP to the port", [][]byte{tcp(4711, port)}, 1},
				{"TCP from the port", [][]byte{tcp(port, 4711)}, 1},
				{"UDP to the port", [][]byte{udp(4711, udpPort)}, 1},
				{"UDP from the port", [][]byte{udp(udpPort, 4711)}, 1},
				{"SCTP to the port", [][]byte{assoc(4711, port)}, 1},
				{"SCTP from the port", [][]byte{assoc(port, 4711)}, 1},
				{"UDP in pieces", pieces(udp(4711, udpPort), 8), 1},
			} {
				before := dropped(t, p.beta, "alpha")
				for _, b := range tc.packets {
					mallory.send(b)
				}
				last := uint64(0)
				if tc.want == 0 { // packets are judged in order: when this one is counted, so are the others
					mallory.send(tcp(4711, port))
					last = 1
				}
				eventually(t, tc.name+" is counted", func() bool { return dropped(t, p.beta, "alpha") >= before+tc.want+last })
				if n := dropped(t, p.beta, "alpha") - before - last; n != tc.want {
					t.Errorf("%s: %d packets dropped, want %d", tc.name, n, tc.want)
				}
			}
		})
	}
}

// awaitWay waits until a host's packets reach another one: a lab's wires may not be up
// yet when their devices are.
func awaitWay(t *testing.T, from *lab.Host, to netip.Addr) {
	t.Helper()
	eventually(t, "packets arrive", func() bool {
		return errors.Is(tryClear(t, from, netip.AddrPortFrom(to, port-1), 5*time.Second), syscall.ECONNREFUSED)
	})
}

// pieces cuts an IP packet into two fragments, the first with n bytes.
func pieces(b []byte, n int) [][]byte {
	be := binary.BigEndian
	if b[0]>>4 == 4 {
		one, two := slices.Clone(b[:20+n]), slices.Concat(b[:20], b[20+n:])
		for i, f := range [][]byte{one, two} {
			be.PutUint16(f[2:], uint16(len(f)))
			be.PutUint16(f[4:], 0x4711)
			be.PutUint16(f[6:], []uint16{1 << 13, uint16(n / 8)}[i])
			be.PutUint16(f[10:], 0)
			be.PutUint16(f[10:], sum(f[:20]))
		}
		return [][]byte{one, two}
	}
	fragment := func(payload []byte, offset uint16) []byte {
		h := be.AppendUint32(be.AppendUint16([]byte{b[6], 0}, offset), 0x4711)
		f := slices.Concat(b[:40], h, payload)
		f[6] = unix.IPPROTO_FRAGMENT
		be.PutUint16(f[4:], uint16(len(f)-40))
		return f
	}
	return [][]byte{fragment(b[40:40+n], 1), fragment(b[40+n:], uint16(n))}
}
