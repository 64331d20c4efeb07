package sctp

import (
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// allocated is how much memory is in use, in bytes.
func allocated() int {
	for range 3 { // pools give way in the second collection
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// What an idle association keeps, after it has had a lot to do, is little: at both
// ends together with the dialler's socket. Heartbeats find that nothing happens.
func TestIdleMemory(t *testing.T) {
	const n, each = 40, 16 << 10
	ctx := patient(t)
	endpoint := func(cfg Config) *Endpoint {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		sock, err := newSocket(conn, false)
		if err != nil {
			t.Fatal(err)
		}
		sock.idle = 10 * time.Millisecond
		cfg.Admit = anyone
		e := newEndpoint(sock, cfg)
		t.Cleanup(func() { e.Close() })
		return e
	}
	s := &sink{}
	e := endpoint(Config{Accept: func(*Assoc) assoc.Receiver { return s }})
	before := allocated()
	all := make([]*Assoc, 0, 2*n)
	m := assoc.Outgoing{Bufs: [][]byte{make([]byte, 500)}}
	for range n {
		a, err := endpoint(Config{}).Dial(ctx, e.Addr(), DialConfig{Receiver: func(*Assoc) assoc.Receiver { return &sink{} }})
		if err != nil {
			t.Fatal(err)
		}
		b, err := e.Accept(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			if _, err := a.Send(ctx, []assoc.Outgoing{m}); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, a, b)
	}
	for _, a := range all {
		for q, err := a.Outq(); q > 0; q, err = a.Outq() {
			if err != nil || ctx.Err() != nil {
				t.Fatalf("%d bytes are left: %v", q, err)
			}
			runtime.Gosched()
		}
		a.mu.Lock()
		a.t.expireHeartbeat(a.ep.now())
		a.deliverAndUnlock(false)
	}
	for ctx.Err() == nil {
		if got := (allocated() - before) / n; got < each {
			t.Logf("%d bytes for an association at both ends", got)
			runtime.KeepAlive(all)
			return
		}
	}
	t.Errorf("%d bytes for an idle association at both ends, want less than %d", (allocated()-before)/n, each)
	runtime.KeepAlive(all)
}
