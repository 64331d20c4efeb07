package simulation

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
	"github.com/ironwarp/ironwarp/rnbd"
)

// What requests of NBD are called.
const (
	nbdDisconnect = 2
	nbdPort       = 10809
	nbdFUA        = 1
)

var nbdTypes = map[block.Op]uint16{block.OpRead: 0, block.OpWrite: 1, block.OpFlush: 3, block.OpStatus: 7}

// program is a client of a process' NBD server, with one connection.
type program struct {
	*nbdtest.Client
	p      *clientProcess
	disk   *rnbd.Disk // behind the server
	number int64
	left   atomic.Int64
	last   time.Duration // it lives on with that under way
	polite bool          // it disconnects in NBD's words then
	over   chan struct{} // closed when it ends
	once   sync.Once

	mu      sync.Mutex // guards the fields below it
	cookie  uint64
	pending []*request
	gone    bool // nothing is sent or answered any more

	end int64 // when it was gone, 0: not yet; guarded by world.mu
}

// request is an operation that has not been answered.
type request struct {
	cookie uint64
	o      *op
	done   chan *nbdtest.Reply // nil: nobody knows what becomes of it
}

// serve has NBD clients use a disk, one or two at a time, of which each is killed
// with I/O under way and another takes its place.
func (p *clientProcess) serve(a *attachment, d *rnbd.Disk, rnd *rand.Rand) {
	srv := nbd.NewServer(nbd.Config{Logger: p.w.log(p.c.name)})
	must(srv.Export(exportName, d, ""))
	local := p.c.local.Transport().Network
	ln, err := local.Listen(p.c.local.Addr(nbdPort))
	must(err)
	ctx, stop := context.WithCancel(p.ctx)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	var wg sync.WaitGroup
	for range 1 + rnd.IntN(2) {
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), 2))
		wg.Go(func() {
			for range 1 + rnd.IntN(5) {
				nc, err := local.Dial(ctx, p.c.local.Addr(0).Addr(), p.c.local.Addr(nbdPort))
				if err != nil || !p.program(nc, a, d, rnd) {
					break
				}
			}
		})
	}
	wg.Wait()
	stop()
	if err := <-served; err != nil {
		p.w.wrong("%s: %v", p.c.name, err)
	}
}

// program is the life of one NBD client. It returns false if there is to be no other.
func (p *clientProcess) program(nc net.Conn, a *attachment, d *rnbd.Disk, rnd *rand.Rand) bool {
	connect := func(nc net.Conn, export string) (*nbdtest.Client, error) {
		return nbdtest.Connect(nc, export, rnd.IntN(2) == 0)
	}
	if rnd.IntN(3) == 0 {
		connect = nbdtest.ConnectExtended
	}
	g := &program{p: p, disk: d, number: p.w.programs.Add(1), last: logTime(rnd, 10*time.Microsecond, 200*time.Millisecond), polite: rnd.IntN(4) == 0,
		over: make(chan struct{})}
	g.left.Store(int64(1 + rnd.IntN(12)))
	var err error
	if g.Client, err = connect(nc, exportName); err != nil {
		if p.ctx.Err() == nil {
			p.w.wrong("%s: an NBD client cannot connect: %v", p.c.name, err)
		}
		nc.Close()
		return false
	}
	p.w.seeSize(a, g.Size)
	p.w.happens("%s: NBD client %d connects", p.c.name, g.number)
	received := make(chan struct{})
	go func() {
		defer close(received)
		g.receive()
	}()
	var wg sync.WaitGroup
	for range p.w.plan.workers {
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), 3))
		wg.Go(func() { p.work(a, d, rnd, g) })
	}
	wg.Wait()
	g.kill()
	<-received
	return d.Info().Err == nil && p.c.budget.Load() > 0 && !p.w.over.Load() && !p.dead.Load()
}

// kill ends the program, and closes its connection with what is under way.
func (g *program) kill() {
	g.once.Do(func() {
		close(g.over)
		if g.polite {
			_ = g.Send(0, nbdDisconnect, 0, 0, 0, nil)
		}
		g.Close()
		w := g.p.w
		w.mu.Lock()
		g.end = w.now()
		w.mu.Unlock()
		w.happens("%s: NBD client %d ends", g.p.c.name, g.number)
	})
}

// receive hands out the replies.
func (g *program) receive() {
	for {
		r, err := g.Receive(g.readLen)
		g.mu.Lock()
		if err != nil {
			g.gone = true
			for _, q := range g.pending {
				close(q.done)
			}
			g.mu.Unlock()
			select {
			case <-g.over:
			case <-g.p.ctx.Done():
			default:
				g.p.w.wrong("%s: the NBD server has hung up: %v", g.p.c.name, err)
			}
			return
		}
		q := g.requestLocked(r.Cookie)
		g.pending = slices.DeleteFunc(g.pending, func(o *request) bool { return o == q })
		g.mu.Unlock()
		if q == nil || r.Structured && r.Flags != 1 {
			g.p.w.wrong("%s: reply %+v, which nobody awaits", g.p.c.name, r)
			continue
		}
		q.done <- r
	}
}

func (g *program) readLen(cookie uint64) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.requestLocked(cookie); q != nil && q.o.kind == block.OpRead {
		return q.o.count * sectorSize
	}
	return 0
}

// requestLocked returns what has not been answered yet, nil if it has.
func (g *program) requestLocked(cookie uint64) *request {
	i := slices.IndexFunc(g.pending, func(q *request) bool { return q.cookie == cookie })
	if i < 0 {
		return nil
	}
	return g.pending[i]
}

// do implements user.
func (g *program) do(o *op) bool {
	w := g.p.w
	if o.kind == block.OpStatus && !g.Extended { // then base:allocation is selected
		o.kind = block.OpRead
	}
	o.via = g
	w.invoke(o)
	var payload []byte
	if o.kind == block.OpWrite {
		payload = make([]byte, o.count*sectorSize)
		for i := range o.count {
			fill(payload[i*sectorSize:][:sectorSize], o.first+i, o.write)
		}
	}
	flags := uint16(0)
	if o.fua {
		flags = nbdFUA
	}
	q := &request{o: o, done: make(chan *nbdtest.Reply, 1)}
	g.mu.Lock()
	if g.gone {
		close(q.done)
	} else {
		g.cookie++
		q.cookie = g.cookie
		g.pending = append(g.pending, q)
		// What cannot be sent is not answered either.
		_ = g.Send(flags, nbdTypes[o.kind], g.cookie, uint64(o.first)*sectorSize, uint32(o.count)*sectorSize, payload)
	}
	g.mu.Unlock()
	if g.left.Add(-1) == 0 {
		time.AfterFunc(g.last, g.kill)
	}
	r, heard := <-q.done
	if !heard {
		w.complete(o, 0, true)
		return false
	}
	switch {
	case r.Error != 0:
	case o.kind == block.OpRead:
		o.see(w, r.Data)
	case o.kind == block.OpStatus:
		for _, e := range r.Extents {
			o.seeExtent(w, e.Length, block.State(e.State))
		}
	}
	g.p.complete(o, syscall.Errno(r.Error), g.disk)
	return true
}

// heir returns an operation that another NBD client of the same server asked for when the
// one of a write was gone, and that was acknowledged before the write was executed. Where
// I/O fails without a path, and is over then for its client, that matters for the bytes of
// later writes alone.
func (w *world) heir(o *op, sector int, executed int64) *op {
	if o.via == nil || o.via.end == 0 {
		return nil
	}
	for _, s := range w.ops {
		if w.plan.noPath.Fail && !(s.kind == block.OpWrite && s.covers(sector)) {
			continue
		}
		if s.via != nil && s.via != o.via && s.by == o.by && s.call > o.via.end && s.succeeded() && s.ret < executed {
			return s
		}
	}
	return nil
}
