package daemon

import (
	"bytes"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// A daemon that listens elsewhere after a reload, at one address, at all, at another
// one, has new streams there at once. A disk that was attached before goes on.
func TestListenAddressesChangeUnderADisk(t *testing.T) {
	for _, transport := range []string{"sctp-udp", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			alpha, beta, gamma := newHost(t, ""), newHost(t, ""), newHost(t, "")
			listen := func(at string) {
				t.Helper()
				beta.write("ironwarp.yaml", fmt.Sprintf("listen: {port: %d, udp_port: %d, addresses: [%q]}\nstate_dir: state\nruntime_dir: run\n", beta.port, beta.udp, at))
				if _, err := beta.api.Reload(t.Context()); err != nil {
					t.Fatal(err)
				}
				ls := beta.status().Listeners
				if len(ls) != 1 || ls[0].State != "listening" || ls[0].Problem != nil {
					t.Fatalf("listening at %s: %+v", at, ls)
				}
			}
			linkOver(alpha, beta, transport, transport)
			beta.write("peers.d/gamma.yaml", fmt.Sprintf("name: gamma\naddress: 127.0.0.3\nport: %d\nprotection: loopback\n%s", gamma.port, over(transport, gamma)))
			listen("127.0.0.1")
			c := alpha.attach("disk")
			before := alpha.streamIDs()

			var rounds atomic.Int64
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					block := bytes.Repeat([]byte{byte(i)}, 4096)
					if e, _ := do(t, c, cmdWrite, 0, 4096, block); e != 0 {
						t.Errorf("write %d: error %d", i, e)
						return
					}
					if e, got := do(t, c, cmdRead, 0, 4096, nil); e != 0 || !bytes.Equal(got, block) {
						t.Errorf("read %d: error %d", i, e)
						return
					}
					rounds.Add(1)
				}
			}()
			for _, hop := range []struct{ listen, dial string }{
				{"0.0.0.0", "127.0.0.1"}, {"127.0.0.1", "127.0.0.1"}, {"::", "127.0.0.2"}, {"127.0.0.2", "127.0.0.2"}, {"0.0.0.0", "127.0.0.1"}, {"127.0.0.1", "127.0.0.1"},
			} {
				listen(hop.listen)
				gamma.write("peers.d/beta.yaml", fmt.Sprintf("name: beta\naddress: %s\nlocal_address: 127.0.0.3\nport: %d\nprotection: loopback\n%s", hop.dial, beta.port, over(transport, beta)))
				if _, err := gamma.api.Reload(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, err := gamma.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1}, nil); err != nil {
					t.Errorf("a new stream to %s where %s is listened on: %v", hop.dial, hop.listen, err)
				}
				n := rounds.Load()
				eventually(t, "the disk moves on", func() bool { return rounds.Load() > n || t.Failed() })
			}
			close(stop)
			<-stopped
			if after := alpha.streamIDs(); !slices.Equal(before, after) {
				t.Errorf("streams %q before, %q after", before, after)
			}
		})
	}
}

func (h *host) streamIDs() (ids []string) {
	for _, s := range h.status().Streams {
		ids = append(ids, s.ID)
	}
	return ids
}
