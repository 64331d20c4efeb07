package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/nsdo/nsdotest"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

func peerWithPrograms(name string, blocks ...config.PortBlock) config.Peer {
	return config.Peer{Name: name, Address: netip.MustParseAddr("127.0.0.1"), Port: 7471, Transport: config.TransportTCP, Protection: config.ProtectIPsec, Programs: blocks,
		Paths: []config.Path{{Name: "lan", Transport: config.TransportTCP, Port: 7471, Addresses: config.Addresses{Address: netip.MustParseAddr("198.51.100.2"), LocalAddress: netip.MustParseAddr("198.51.100.1")}}}}
}

// TestBlocksOfPortsAreGuardedAndHaveSAs, at each path of a peer.
func TestBlocksOfPortsAreGuardedAndHaveSAs(t *testing.T) {
	c := peerWithPrograms("beta", config.PortBlock{First: 18432, Size: 512}, config.PortBlock{First: 18944, Size: 1})
	var want []guard.Spec
	for _, a := range []string{"127.0.0.1", "198.51.100.2"} {
		for _, k := range []config.PortBlock{{First: 7471}, {First: 18432, Size: 512}, {First: 18944}} {
			want = append(want, guard.Spec{Remote: netip.MustParseAddr(a), Protocol: transport.ProtoTCP, Port: k.First, Size: k.Size})
		}
	}
	if got := guardsOf(c); !slices.Equal(got, want) {
		t.Errorf("guards %v, want %v", got, want)
	}
	for _, pair := range c.Pairs() {
		p := ipsecPeer(c, pair, netip.MustParseAddr("192.0.2.1"), credentials{})
		if len(p.Blocks) != 2 || p.Blocks[0] != (pad.Link{Protocol: transport.ProtoTCP, Port: 18432, Size: 512}) || len(p.AllLinks()) != 3 {
			t.Errorf("%s: %v", pair.Connection, p.AllLinks())
		}
	}
}

// TestBlockThatIsGoneLosesItsGuard: it is recorded, found by the next daemon, and let go when the kernel's
// sockets of it are ended, whichever of its ports they have. A block that shrinks stays guarded.
func TestBlockThatIsGoneLosesItsGuard(t *testing.T) {
	for _, next := range [][]config.PortBlock{nil, {{First: 18432, Size: 256}}, {{First: 18432, Size: 1024}}, {{First: 18688, Size: 256}}} {
		t.Run(fmt.Sprint(next), func(t *testing.T) {
			nsdotest.Connected(t, "127.0.0.1:18500", func(dialled, _ *net.TCPConn) error {
				file := guardsFile(t.TempDir())
				x := recordedGuards{log: slog.New(slog.DiscardHandler), file: file, remove: guard.Remove, held: map[guardRecord]string{}}
				before := peerWithPrograms("beta", config.PortBlock{First: 18432, Size: 512})
				before.Paths = nil
				x.record(before)
				if _, err := guard.Reconcile("", guardsOf(before)); err != nil {
					return err
				}
				y := recordedGuards{log: slog.New(slog.DiscardHandler), file: file, remove: guard.Remove, held: map[guardRecord]string{}}
				y.load()
				if !slices.Equal(x.list, y.list) || len(y.list) != 2 {
					data, _ := os.ReadFile(file)
					t.Errorf("read as %+v: %s", y.list, data)
				}
				after := before
				after.Programs = next
				y.record(after)
				if _, err := guard.Reconcile("", guardsOf(after)); err != nil {
					return err
				}
				y.removeUnneeded([]*peer{newPeer(after)})
				if len(y.list) != len(guardsOf(after)) {
					t.Errorf("recorded are %+v", y.list)
				}
				have, err := guard.List("")
				if err != nil {
					return err
				}
				for _, p := range have {
					if p.Size == 512 {
						t.Errorf("left is %v", p)
					}
				}
				if holes, err := guard.Holes(guardsOf(after)...); err != nil || len(holes) != 0 {
					t.Errorf("%v, %v", holes, err)
				}
				// The socket is ended unless another guard stops it.
				stays := slices.ContainsFunc(next, func(b config.PortBlock) bool { return b.Contains(18500) })
				wait := waitTime
				if stays {
					wait = 100 * time.Millisecond
				}
				_ = dialled.SetReadDeadline(time.Now().Add(wait))
				if _, err := dialled.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) != stays {
					t.Errorf("the connection: %v; stays should be %v", err, stays)
				}
				return nil
			})
		})
	}
}

// TestPortsOfProgramsAreShownOfTheirPeers, and the control socket is nobody else's for a ULP of root's programs.
func TestPortsOfProgramsAreShownOfTheirPeers(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	mode := func() os.FileMode {
		st, err := os.Stat(alpha.dir + "/run/ironwarp.sock")
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode().Perm()
	}
	alpha.ulps("\n  - {name: root-rdma, peers: [beta], ports: [5120/16]}\n")
	if p := alpha.peer("beta"); !slices.Equal(p.ProgramPorts, []string{"5120/16"}) || mode()&0o006 != 0 {
		t.Errorf("program ports %q, socket %v", p.ProgramPorts, mode())
	}
	alpha.ulps("\n  - {name: hpc, users: [53101], peers: [beta], ports: [4608/16, 4096/512], listen: true}\n  - {name: root-rdma, peers: [beta], ports: [5120/16]}\n")
	if p := alpha.peer("beta"); strings.Join(p.ProgramPorts, " ") != "4096/512 4608/16 5120/16" || mode()&0o006 != 0o006 {
		t.Errorf("program ports %q, socket %v", p.ProgramPorts, mode())
	}
	alpha.ulps("")
	if p := alpha.peer("beta"); len(p.ProgramPorts) != 0 {
		t.Errorf("program ports %q", p.ProgramPorts)
	}
}
