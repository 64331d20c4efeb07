package peers

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// TestWhatIsQueuedForARemovedPeerIsNeverSent lets a disk's data wait for an unreachable
// peer, and ends that link in each way that removes its guard.
// ipsectest.TestGuardGoesAfterTheLastByteOfItsLink shows that such data would leave in
// clear if the guard went first.
func TestWhatIsQueuedForARemovedPeerIsNeverSent(t *testing.T) {
	file := func(s *scene) string { return filepath.Join(filepath.Dir(s.alpha.Config), "peers.d", "beta.yaml") }
	peerRm := func(s *scene) {
		s.must(s.alpha, "detach", "--force", "beta/disk")
		s.must(s.alpha, "peer", "rm", "beta")
	}
	removed := func(s *scene) {
		s.alpha.Kill()
		if err := os.Remove(file(s)); err != nil {
			s.t.Fatal(err)
		}
		if err := s.alpha.Start(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, way := range []struct {
		name, carrier string
		end           func(s *scene)
	}{
		{"peer rm", "tcp", peerRm},
		{"peer rm", "sctp-udp", peerRm},
		{"peer rm", "sctp", peerRm},
		{"a changed address", "tcp", func(s *scene) {
			s.edit(s.alpha, "beta", "", s.beta.Addr().String(), "10.99.0.77")
			s.must(s.alpha, "reload")
		}},
		{"another transport", "tcp", func(s *scene) {
			s.edit(s.alpha, "beta", "transport: sctp-udp\n", "transport: tcp\n", "")
			s.must(s.alpha, "reload")
		}},
		{"removed from the files while no daemon runs", "tcp", removed},
		{"removed from the files while no daemon runs", "sctp", removed},
	} {
		t.Run(way.name+" "+way.carrier, func(t *testing.T) {
			if way.carrier == "sctp" {
				lab.RequireKernelSCTP(t)
				t.Attr("row", "a peer with queued data is gone, "+way.name+": the kernel has no association any more, its guard goes, and nothing leaves in clear")
			}
			s := newScene(t)
			if err := node.Join(t.Context(), s.alpha, s.beta, "--transport", way.carrier); err != nil {
				t.Fatal(err)
			}
			secret := make([]byte, 16)
			rand.Read(secret)
			text := []byte(hex.EncodeToString(secret))
			source, image := filepath.Join(s.alpha.Dir(), "source.img"), filepath.Join(s.beta.Dir(), "disk.img")
			for path, data := range map[string][]byte{source: bytes.Repeat(text, (4<<20)/len(text)), image: make([]byte, 4<<20)} {
				if err := os.WriteFile(path, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s.must(s.beta, "export", "add", "--allow", "id:"+s.alpha.Addr().String(), "disk", image)
			s.must(s.alpha, "attach", "beta/disk")
			var uri string
			s.until("the disk is there", func() bool {
				list, err := s.alpha.Client().Attachments(t.Context())
				if err != nil || len(list) != 1 || list[0].State != api.AttachReady {
					return false
				}
				uri = list[0].URI
				return true
			})
			pcap := filepath.Join(t.TempDir(), "wire.pcap")
			wire, err := s.alpha.Capture(t.Context(), lab.CaptureOptions{File: pcap, SnapLen: 1 << 16, Unjudged: "the test looks for the disk's data itself"})
			if err != nil {
				t.Fatal(err)
			}
			// A fixed hardware address, so that packets are sent even when nobody answers.
			s.shell(s.alpha, "ip neigh replace "+s.beta.Addr().String()+" lladdr 02:00:00:00:00:01 dev wire0 nud permanent")
			if err := s.beta.Sever(t.Context(), 0, true); err != nil {
				t.Fatal(err)
			}
			cmd := s.alpha.Command(t.Context(), "nbdcopy", source, uri)
			cmd.WaitDelay = time.Second
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}()
			link := guard.Spec{NetNS: s.alpha.NetNS(), Remote: s.beta.Addr(), Protocol: transport.ProtoTCP, Port: config.DefaultPort}
			queued := func() (n uint64) {
				left, err := guard.LinkSockets(link)
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range left {
					n += l.Queued
				}
				return n
			}
			if way.carrier == "sctp" {
				link.Protocol = transport.ProtoSCTP
			}
			if way.carrier != "sctp-udp" {
				s.until("the kernel has data to send", func() bool { return queued() > 1000 })
			} else {
				link.Protocol, link.Port = transport.ProtoUDP, config.DefaultUDPPort
				s.until("writes wait", func() bool {
					list, err := s.alpha.Client().Attachments(t.Context())
					return err == nil && len(list) == 1 && list[0].Clients > 0
				})
			}
			way.end(s)
			s.until("the guard is let go", func() bool {
				list, err := guard.List(s.alpha.NetNS())
				if err != nil {
					t.Fatal(err)
				}
				for _, g := range list {
					if g.Remote == link.Remote && g.Protocol == link.Protocol {
						return false
					}
				}
				return true
			})
			if left, err := guard.LinkSockets(link); err != nil || len(left) > 0 {
				t.Errorf("the kernel still has %v, %v", left, err)
			}
			if _, err := wire.Stop(); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(pcap)
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(data, text); n > 0 {
				t.Errorf("the disk's data is on the wire in clear, %d times", n)
			}
		})
	}
}

func (s *scene) shell(n *node.Node, line string) {
	s.t.Helper()
	if out, err := n.Run(s.t.Context(), "sh", "-c", line); err != nil {
		s.t.Fatal(err, out)
	}
}
