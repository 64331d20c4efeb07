package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

// client is a host that attaches the disk, and its administrator, who attaches it again
// when it was lost.
type client struct {
	w       *world
	name    string
	number  int
	plan    clientPlan
	links   []*verbstest.Host // one for each path
	packets []*packetPath     // of these over SCTP, else nil
	local   *verbstest.Host   // by which its programs reach its NBD server
	done    chan struct{}
	idle    chan struct{} // closed when it has detached the disk at the end

	once   sync.Once    // closes idle
	budget atomic.Int64 // operations

	mu    sync.Mutex // guards the fields below it
	proc  *clientProcess
	claim rnbd.Claim // as stored in a file
	epoch int        // counts attachments that know nothing of those before
}

// clientProcess is a program of a client's that has the disk attached.
type clientProcess struct {
	*process
	c      *client
	ctx    context.Context
	cancel context.CancelFunc
	rc     *rnbd.Client // guarded by client.mu
	disk   *rnbd.Disk   // guarded by client.mu
	by     *attachment  // of the disk; guarded by client.mu
}

// attachment is an opening of the disk by a process.
type attachment struct {
	client   *client
	process  *clientProcess
	epoch    int
	readOnly bool
	id       block.ID // by which the server knows it; guarded by client.mu
	call     int64    // when it was asked for
	start    int64    // when it was there; 0: nobody heard of it
	detached int64    // when it was detached in use; guarded by client.mu
	size     uint64   // of the disk, as it was seen last; guarded by world.mu
}

func newClient(w *world, name string, plan clientPlan) *client {
	c := &client{w: w, name: name, number: len(w.clients), plan: plan, done: make(chan struct{}), idle: make(chan struct{}), epoch: 1}
	c.budget.Store(int64(w.plan.ops))
	h := w.fabric.Host(c.name)
	c.local = w.fabric.Host(c.name + "-local")
	for k, from := range plan.delays {
		if k > 0 {
			h = h.Link()
		}
		c.links, c.packets = append(c.links, h), append(c.packets, nil)
		if plan.sctp != nil && plan.sctp[k] != nil {
			c.packets[k] = &packetPath{lossy: plan.sctp[k], from: from, rnd: w.rand(fmt.Sprint(c.name, k)), fates: &w.fates}
			h.Carry(c.packets[k].carry)
			h.Damage(c.packets[k].spoil)
			continue
		}
		rnd, mu := w.rand(fmt.Sprint(c.name, k)), new(sync.Mutex)
		h.Delay(func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return logTime(rnd, from, 4*from)
		})
	}
	return c
}

// path is the configuration of a path of the process.
func (p *clientProcess) path(i int) rtrs.PathConfig {
	kind := transport.TCP
	if p.c.packets[i] != nil {
		kind = transport.SCTPUDP
	}
	return rtrs.PathConfig{Name: pathName(i), Remote: p.w.host.Addr(port), Transport: p.transport(p.c.links[i], kind)}
}

// live has the client work until the world ends.
func (c *client) live() {
	defer close(c.done)
	rnd := c.w.rand(c.name)
	for !c.w.over.Load() {
		c.run(rnd)
		if !c.w.over.Load() {
			sleep(logTime(rnd, time.Millisecond, 5*time.Second))
		}
	}
	c.isIdle()
}

// isIdle marks that the client has detached the disk for good.
func (c *client) isIdle() { c.once.Do(func() { close(c.idle) }) }

// run is the life of one process.
func (c *client) run(rnd *rand.Rand) {
	p := c.start()
	defer p.stop()
	for !p.connect() {
		if !p.pause(time.Second) {
			return
		}
	}
	for p.attach(rnd) && p.pause(logTime(rnd, 100*time.Millisecond, 20*time.Second)) {
		if c.budget.Load() <= 0 {
			select {
			case <-p.w.end:
			case <-p.ctx.Done():
			}
		}
	}
	if c.w.over.Load() && !p.dead.Load() {
		c.isIdle()
		select {
		case <-c.w.leave:
		case <-p.ctx.Done():
		}
	}
}

// start starts a process.
func (c *client) start() *clientProcess {
	p := &clientProcess{process: c.w.newProcess(), c: c}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proc = p
	return p
}

func (p *clientProcess) stop() {
	p.c.mu.Lock()
	p.c.proc = nil
	p.c.mu.Unlock()
	p.cancel()
	if p.rc != nil {
		p.rc.Close()
	}
	p.dev.Close()
}

// connect opens the process's session.
func (p *clientProcess) connect() bool {
	c, w := p.c, p.w
	cfg := rtrs.ClientConfig{ULP: p.ulp, Name: c.name, Policy: w.plan.policy, Conns: w.plan.conns, QueueDepth: w.plan.depth,
		Heartbeat: w.plan.heartbeat, NoPath: w.plan.noPath, Logger: w.log(c.name)}
	for i := range c.links {
		cfg.Paths = append(cfg.Paths, p.path(i))
	}
	rc, err := rnbd.Connect(p.ctx, rnbd.ClientConfig{RTRS: cfg, Logger: w.log(c.name)})
	if err != nil {
		w.happens("%s cannot connect: %v", c.name, err)
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p.rc = rc
	return true
}

// pause returns false if the process is to end.
func (p *clientProcess) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return !p.w.over.Load()
	case <-p.ctx.Done():
		return false
	}
}

// attach attaches the disk, and works until it is lost. It returns false if the process
// is to end.
func (p *clientProcess) attach(rnd *rand.Rand) bool {
	a, d := p.open()
	if d == nil {
		return !p.dead.Load()
	}
	p.c.mu.Lock()
	p.disk, p.by = d, a
	p.c.mu.Unlock()
	if p.c.plan.nbd {
		p.serve(a, d, rnd)
	} else {
		p.use(a, d, rnd)
	}
	if p.dead.Load() {
		return false
	}
	p.detach(d)
	return !p.w.over.Load()
}

// use has the process itself use the disk.
func (p *clientProcess) use(a *attachment, d *rnbd.Disk, rnd *rand.Rand) {
	var wg sync.WaitGroup
	for range p.w.plan.workers {
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), 1))
		wg.Go(func() { p.work(a, d, rnd, direct{p, d}) })
	}
	wg.Wait()
}

// open attaches the disk. It returns nil if it cannot.
func (p *clientProcess) open() (*attachment, *rnbd.Disk) {
	c, w := p.c, p.w
	c.mu.Lock()
	a := &attachment{client: c, process: p, epoch: c.epoch, readOnly: c.plan.reader}
	opt := rnbd.OpenOptions{ReadOnly: a.readOnly, Claim: c.claim, Keep: func(cl rnbd.Claim) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if p.dead.Load() {
			return context.Canceled
		}
		a.id, c.claim = cl.Attachment, cl
		return nil
	}}
	c.mu.Unlock()
	w.mu.Lock()
	a.call = w.now()
	w.attached = append(w.attached, a)
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.ctx, w.plan.patience)
	defer cancel()
	d, err := p.rc.Open(ctx, exportName, opt)
	if err != nil {
		w.happens("%s cannot attach the disk: %v", c.name, err)
		c.forget(err)
		return nil, nil
	}
	if err := d.Info().Err; errors.Is(err, rnbd.ErrFenced) {
		_ = d.Close()
		w.happens("%s was fenced while it was away: %v", c.name, err)
		c.forget(err)
		return nil, nil
	}
	w.mu.Lock()
	a.start = w.now()
	w.mu.Unlock()
	w.seeSize(a, d.Geometry().Size)
	w.happens("%s has attached the disk, epoch %d", c.name, a.epoch)
	return a, d
}

// detach detaches the disk.
func (p *clientProcess) detach(d *rnbd.Disk) {
	lost := d.Info().Err
	_ = d.Close()
	p.w.happens("%s detaches the disk: %v", p.c.name, lost)
	p.c.forget(lost)
}

// forget is what an administrator does who is told that writes are lost, or that another
// has written: the disk is attached anew.
func (c *client) forget(err error) {
	if !isForGood(err) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claim = rnbd.Claim{}
	c.epoch++
}

func isForGood(err error) bool {
	return errors.Is(err, rnbd.ErrWritesLost) || errors.Is(err, rnbd.ErrPreempted) || errors.Is(err, rnbd.ErrFenced) || errors.Is(err, rnbd.ErrOtherDisk) || errors.Is(err, rnbd.ErrDamaged)
}

// detachNow detaches the disk while it is in use, if it is attached.
func (c *client) detachNow() {
	c.mu.Lock()
	var d *rnbd.Disk
	if c.proc != nil {
		if d = c.proc.disk; d != nil && c.proc.by.detached == 0 {
			c.proc.by.detached = c.w.now()
		}
	}
	c.mu.Unlock()
	if d != nil {
		_ = d.Close()
	}
}

// user uses a disk.
type user interface {
	// do carries out one operation, and records it. It returns false if there can be no other.
	do(o *op) bool
}

// direct is the process itself as user.
type direct struct {
	*clientProcess
	disk *rnbd.Disk
}

// work is one user of the disk.
func (p *clientProcess) work(a *attachment, d *rnbd.Disk, rnd *rand.Rand, by user) {
	for range 3 + rnd.IntN(20) {
		if p.c.budget.Add(-1) < 0 || p.w.over.Load() || p.dead.Load() {
			return
		}
		o := &op{by: a, kind: block.OpRead}
		switch n := rnd.IntN(20); {
		case n < 3:
			o.kind = block.OpFlush
		case n < 13 && !a.readOnly:
			o.kind = block.OpWrite
			o.fua = n == 12
		case n == 19:
			o.kind = block.OpStatus
		}
		if o.kind != block.OpFlush {
			o.first = rnd.IntN(p.w.plan.sectors)
			o.count = 1 + rnd.IntN(min(3, p.w.plan.sectors-o.first))
		}
		if !by.do(o) {
			return
		}
		if o.gaveUp() && !p.pause(logTime(rnd, 10*time.Millisecond, 5*time.Second)) {
			return
		}
		if err := d.Info().Err; isForGood(err) || errors.Is(err, rnbd.ErrClosed) {
			return
		}
		if !p.pause(logTime(rnd, 100*time.Microsecond, p.w.plan.think)) {
			return
		}
	}
}

type waiter chan syscall.Errno

func (w waiter) Complete(e syscall.Errno) { w <- e }

// do implements user.
func (p direct) do(o *op) bool {
	w, d := p.w, p.disk
	w.invoke(o)
	w.seeSize(o.by, d.Geometry().Size)
	var fl block.Flags
	if o.fua {
		fl = block.FUA
	}
	io, err := d.Get(p.ctx, o.kind, uint64(o.first)*sectorSize, uint32(o.count)*sectorSize, fl)
	if err != nil {
		errno := syscall.EIO
		errors.As(err, &errno)
		p.complete(o, errno, d)
		return true
	}
	defer io.Release()
	if o.kind == block.OpWrite {
		at := o.first
		for _, b := range io.Buffers() {
			for ; len(b) > 0; b = b[sectorSize:] {
				fill(b[:sectorSize], at, o.write)
				at++
			}
		}
	}
	done := make(waiter, 1)
	io.Submit(done, false)
	errno := <-done
	switch {
	case errno != 0:
	case o.kind == block.OpRead:
		o.see(w, slices.Concat(io.Buffers()...))
	case o.kind == block.OpStatus:
		for _, e := range block.ParseExtents(io.Buffers()[0], uint32(o.count)*sectorSize, sectorSize) {
			o.seeExtent(w, uint64(e.Length), e.State)
		}
	}
	p.complete(o, errno, d)
	return true
}

// complete records the end of an operation, and what was wrong then.
func (p *clientProcess) complete(o *op, errno syscall.Errno, d *rnbd.Disk) {
	o.why = d.Info().Err
	select {
	case <-p.rc.Session().NoPath():
		o.why = errors.Join(o.why, rtrs.ErrNoPath)
	default:
	}
	p.w.complete(o, errno, p.dead.Load())
}

// seeExtent takes what is said about the next so many bytes.
func (o *op) seeExtent(w *world, n uint64, s block.State) {
	const unwritten = block.Hole | block.Zero
	if n == 0 || n%sectorSize != 0 || s != 0 && s != unwritten {
		w.wrong("%v: %d bytes are %v", o, n, s)
	}
	for range n / sectorSize {
		o.seen = append(o.seen, uint64(s^unwritten))
	}
}

// see takes what a read has read.
func (o *op) see(w *world, b []byte) {
	for at := o.first; len(b) > 0; at++ {
		v, ok := number(b[:sectorSize], at)
		if !ok {
			w.wrong("%v returns parts of several sectors, or of another", o)
		}
		o.seen = append(o.seen, v)
		b = b[sectorSize:]
	}
}

// kill ends the client's process, if it has one, as SIGKILL does.
func (c *client) kill() {
	c.mu.Lock()
	p := c.proc
	if p == nil {
		c.mu.Unlock()
		return
	}
	p.die()
	rc := p.rc
	c.mu.Unlock()
	for _, l := range c.links {
		l.Cut()
	}
	c.w.happens("%s killed", c.name)
	p.cancel()
	if rc != nil {
		rc.Close()
	}
}
