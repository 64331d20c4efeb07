package rtrs

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// nullHandler completes everything at once.
type nullHandler struct{}

func (nullHandler) Serve(r *Request)        { r.CompleteMore(0) }
func (nullHandler) BatchEnd()               {}
func (nullHandler) Closed(time.Time, error) {}

// pump keeps depth I/Os in flight until n have been made.
type pump struct {
	cl    *Client
	dir   Dir
	size  int
	hdr   []byte
	depth int
	tick  chan *Permit
	errno syscall.Errno
}

func (p *pump) Complete(q *Permit, errno syscall.Errno) {
	if errno != 0 {
		p.errno = errno
	}
	p.tick <- q
}

func (p *pump) run(tb testing.TB, n int) {
	inflight := 0
	for inflight < p.depth && inflight < n {
		q, err := p.cl.Get(tb.Context())
		if err != nil {
			tb.Fatal(err)
		}
		q.SubmitMore(p.dir, p.hdr, p.size, p)
		inflight++
	}
	p.cl.Flush()
	for done := 0; done < n; {
		q := <-p.tick
		for {
			done++
			if done+inflight <= n {
				q.SubmitMore(p.dir, p.hdr, p.size, p)
			} else {
				inflight--
				p.cl.Put(q)
			}
			select {
			case q = <-p.tick:
				continue
			default:
			}
			break
		}
		p.cl.Flush()
	}
	if p.errno != 0 {
		tb.Fatal(p.errno)
	}
}

// cpuTime is what the process has used, both ends being in it.
func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkIO(b *testing.B) {
	for _, c := range []struct {
		size, depth int
	}{{4096, 1}, {4096, 32}, {256 << 10, 4}, {256 << 10, 16}} {
		for _, dir := range []Dir{Read, Write} {
			for _, conns := range []int{1, 2} {
				b.Run(fmt.Sprintf("%s/size=%d/depth=%d/conns=%d", dir, c.size, c.depth, conns), func(b *testing.B) {
					srv := startServer(b, ServerConfig{NewSession: func(SessionInfo) (ServerHandler, error) { return nullHandler{}, nil }})
					cfg := clientConfig(newHost(b), srv.addr, "bench")
					cfg.Conns = conns
					cl := connect(b, cfg)
					p := &pump{cl: cl, dir: dir, size: c.size, hdr: header(0), depth: c.depth, tick: make(chan *Permit, c.depth)}
					p.run(b, 2000)
					b.SetBytes(int64(c.size))
					b.ReportAllocs()
					b.ResetTimer()
					start := cpuTime()
					p.run(b, b.N)
					b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/1000/float64(b.N), "cpu-us/op")
					b.StopTimer()
					cl.Close()
					srv.stop(b)
				})
			}
		}
	}
}
