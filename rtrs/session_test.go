package rtrs

import (
	"bytes"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/verbs"
)

func TestReadsReturnWhatWasWritten(t *testing.T) {
	for _, cfg := range []ServerConfig{{}, {TrustClients: true, Trust: verbs.NSRT}, {TrustClients: true, Trust: verbs.ST}} {
		m := newMemory(4 << 20)
		cfg.NewSession = m.session
		srv := startServer(t, cfg)
		h := newHost(t)
		cl := connect(t, clientConfig(h, srv.addr, "a"))
		for _, n := range []int{0, 1, 511, 4096, 4097, 65536, cl.MaxIO()} {
			want := make([]byte, n)
			for i := range want {
				want[i] = byte(rand.Uint32())
			}
			off := rand.IntN(len(m.data) - n + 1)
			if e := write(t, cl, off, want); e != 0 {
				t.Fatalf("write %d: %v", n, e)
			}
			got := make([]byte, n)
			if e := read(t, cl, off, got); e != 0 {
				t.Fatalf("read %d: %v", n, e)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("read of %d bytes differs from what was written", n)
			}
		}
		if e := write(t, cl, len(m.data), []byte{1}); e != syscall.ENOSPC {
			t.Errorf("write beyond the end: %v, want ENOSPC", e)
		}
		eventually(t, "the client has counted its I/O", func() bool {
			s := cl.Stats()
			return s.WriteErrors == 1 && s.Writes == 8 && s.Reads == 7 && s.ReadBytes == s.WriteBytes
		})
		cl.Close()
		h.unused(t)
		srv.stop(t)
	}
}
