package peers

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
)

// TestNoSYNIsAnsweredInClearWhenTheGuardGoes has a peer ask for connections in clear, all
// the time, while this host's guard of it is taken down: if the listener outlived the
// guard, the kernel would answer one with a SYN and ACK. That the guard is gone shows in a
// RST, and that an answer would be found in those of a listener of somebody else's.
func TestNoSYNIsAnsweredInClearWhenTheGuardGoes(t *testing.T) {
	for name, end := range map[string]func(s *scene){
		"peer rm": func(s *scene) { s.must(s.alpha, "peer", "rm", "beta") },
		"another transport": func(s *scene) {
			s.edit(s.alpha, "beta", "transport: sctp-udp\n", "transport: tcp\n", "")
			s.must(s.alpha, "reload")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			if err := node.Join(t.Context(), s.alpha, s.beta, "--transport", "tcp"); err != nil {
				t.Fatal(err)
			}
			s.ping()                              // alpha listens
			s.must(s.beta, "peer", "rm", "alpha") // from now on beta has no SA and no guard
			at := netip.AddrPortFrom(s.alpha.Addr(), config.DefaultPort)
			answers := func(flags string) func() int {
				wire, err := s.alpha.Capture(t.Context(), lab.CaptureOptions{Unjudged: "the control at the end has to find answers",
					Filter: fmt.Sprintf("src host %s and tcp src port %d and %s", at.Addr(), at.Port(), flags)})
				if err != nil {
					t.Fatal(err)
				}
				return func() int {
					k, err := wire.Count()
					if err != nil {
						t.Fatal(err)
					}
					return k.ClearTCP[at.Port()]
				}
			}
			accepted, refused := answers("tcp[tcpflags] & (tcp-syn|tcp-ack) = (tcp-syn|tcp-ack)"), answers("tcp[tcpflags] & tcp-rst != 0")
			defer s.askInClear(at)()
			dropped := "grep XfrmInPolBlock /proc/net/xfrm_stat | awk '{ print $2 }'"
			was, err := s.alpha.Run(t.Context(), "sh", "-c", dropped)
			if err != nil {
				t.Fatal(err)
			}
			s.until("the guard drops what beta asks", func() bool {
				now, err := s.alpha.Run(t.Context(), "sh", "-c", dropped)
				return err == nil && now != was
			})
			if n := accepted() + refused(); n != 0 {
				t.Errorf("%d answers in clear while there is a guard", n)
			}
			end(s)
			s.until("the guard is gone", func() bool { return refused() > 0 })
			if n := accepted(); n != 0 {
				t.Errorf("%d SYNs were answered in clear when the guard went", n)
			}
			ln, err := s.alpha.Listen(t.Context(), at)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			s.until("an answer is found", func() bool { return accepted() > 0 })
		})
	}
}

// askInClear has beta send a SYN each millisecond, until stop is called.
func (s *scene) askInClear(at netip.AddrPort) (stop func()) {
	s.t.Helper()
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		err := s.beta.Do(func() error {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return nil
				case <-tick.C:
				}
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				_ = unix.Connect(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}) // goes on
				if err := unix.Close(fd); err != nil {
					return err
				}
			}
		})
		if err != nil {
			s.t.Error(err)
		}
	})
	return func() { close(done); wg.Wait() }
}
