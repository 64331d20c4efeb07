package simulation

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

const (
	exportName = "disk"
	port       = 7471
)

// world is one run: a network, a server with a disk, its clients, and what they did.
type world struct {
	seed     uint64
	sctp     bool // some of the paths are SCTP's
	verbose  bool
	plan     plan
	begin    time.Time
	fabric   *verbstest.Fabric
	host     *verbstest.Host // the server's
	disk     *disk
	ticks    atomic.Int64
	programs atomic.Int64  // NBD clients that there have been
	over     atomic.Bool   // the clients end
	end      chan struct{} // closed then
	leave    chan struct{} // closed when their sessions end

	fates fates // of packets; guarded by the fabric

	clients  []*client
	disposal sync.WaitGroup // of processes that were killed

	mu       sync.Mutex // guards the fields below it; innermost
	server   *server
	places   []rnbd.Reservation
	ops      []*op
	attached []*attachment
	begun    []began
	admitted map[block.ID]*admission // by attachment
	fences   []fence
	grown    []growth
	writes   uint64
	events   []string
	faults   []string
}

// began is when the server began a session of a client's.
type began struct {
	client transport.Identity
	at     int64
}

// admission is when the server let an attachment write: more than once if another was let in
// meanwhile.
type admission struct {
	client transport.Identity
	at     []int64
}

// fence is a fence of a client's.
type fence struct {
	client       *client
	call, answer int64 // answer is 0 if it failed
}

// growth is when the disk was offered with a size.
type growth struct {
	at   int64
	size uint64
}

func newWorld(seed uint64, sctp, verbose bool) *world {
	w := &world{seed: seed, verbose: verbose, begin: time.Now(), fabric: verbstest.New(), admitted: make(map[block.ID]*admission), end: make(chan struct{}), leave: make(chan struct{})}
	w.plan = draw(w.rand("plan"), w.rand("orders"), w.rand("nbd"), w.rand("no path"))
	if w.sctp = sctp; sctp {
		w.plan.addSCTP(w.rand("sctp"))
	}
	w.host = w.fabric.Host("server")
	w.disk = newDisk(w)
	for i, c := range w.plan.clients {
		w.clients = append(w.clients, newClient(w, fmt.Sprint("client", i), c))
	}
	return w
}

// rand is a source of random numbers for one purpose.
func (w *world) rand(purpose string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(purpose))
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// logTime draws a time such that each magnitude is as likely.
func logTime(rnd *rand.Rand, from, to time.Duration) time.Duration {
	return time.Duration(float64(from) * math.Pow(float64(to)/float64(from), rnd.Float64()))
}

// sleep waits in the bubble's time.
func sleep(d time.Duration) { <-time.After(d) }

// now is a time by which all that happens is ordered.
func (w *world) now() int64 { return w.ticks.Add(1) }

// happens records an event, if anybody is to see it.
func (w *world) happens(format string, args ...any) {
	if !w.verbose {
		return
	}
	text := fmt.Sprintf("%12.6f #%-5d ", time.Since(w.begin).Seconds(), w.ticks.Load()) + fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, text)
}

// wrong records a fault of the product.
func (w *world) wrong(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// log returns a logger that has what the product logs among the events.
func (w *world) log(who string) *slog.Logger { return slog.New(logger{w, who}) }

type logger struct {
	w   *world
	who string
}

func (l logger) Enabled(context.Context, slog.Level) bool { return l.w.verbose }
func (l logger) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l logger) WithGroup(string) slog.Handler            { return l }

func (l logger) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s", a)
		return true
	})
	l.w.happens("%s: %s%s", l.who, r.Message, b.String())
	return nil
}

// process is a program on a host: its device and its consumer. When it has been killed it
// reaches nobody any more.
type process struct {
	w    *world
	dead atomic.Bool
	dev  *verbs.Device
	ulp  *verbs.ULP

	mu      sync.Mutex       // guards the fields below it
	sockets []net.PacketConn // that it has opened
}

func (w *world) newProcess() *process {
	p := &process{w: w}
	var err error
	if p.dev, err = verbs.Open(verbs.Config{}); err == nil {
		p.ulp, err = p.dev.NewULP("disk", verbs.ULPConfig{Trust: verbs.ST})
	}
	if err != nil {
		panic(err)
	}
	return p
}

// server is a process that exports the disk.
type server struct {
	*process
	store     *handle
	nb        *rnbd.Server
	rt        *rtrs.Server
	lns       []*verbs.Listener // one for each kind of path
	accepting sync.WaitGroup
}

// startServer starts a process on the server's host.
func (w *world) startServer() {
	s := &server{process: w.newProcess(), store: &handle{disk: w.disk}}
	w.mu.Lock()
	places := slices.Clone(w.places)
	w.mu.Unlock()
	s.nb = rnbd.NewServer(rnbd.ServerConfig{Logger: w.log("server"), WriterGrace: w.plan.grace, Reservations: places, StoreReservations: s.keep})
	must(s.addExport())
	var err error
	s.rt, err = rtrs.NewServer(rtrs.ServerConfig{ULP: s.ulp, QueueDepth: w.plan.depth, MaxIO: rtrs.MinMaxIO, Linger: w.plan.linger,
		Heartbeat: w.plan.heartbeat, Logger: w.log("server"), NewSession: s.session})
	must(err)
	s.listen(transport.TCP)
	if w.sctp {
		s.listen(transport.SCTPUDP)
	}
	w.mu.Lock()
	w.server = s
	w.mu.Unlock()
	w.happens("server started")
}

func (s *server) listen(kind transport.Kind) {
	ln, err := s.dev.Listen(context.Background(), s.w.host.Addr(port), verbs.ListenConfig{Transport: s.transport(s.w.host, kind)})
	must(err)
	s.lns = append(s.lns, ln)
	s.accepting.Go(func() {
		for {
			cr, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			s.rt.Handle(cr)
		}
	})
}

// deafen has the server accept nobody any more.
func (s *server) deafen() {
	for _, ln := range s.lns {
		ln.Close()
	}
}

func (s *server) addExport() error {
	e := rnbd.Export{Name: exportName, Storage: s.store, AllowAll: true}
	if s.w.plan.shared {
		e.Writers = rnbd.SharedWriters
	}
	return s.nb.AddExport(e)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// keep stores the reservations of writers as a file would, and notes who is new there.
func (s *server) keep(all []rnbd.Reservation) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.dead.Load() {
		return context.Canceled
	}
	mayWrite := func(places []rnbd.Reservation, id block.ID) bool {
		return slices.ContainsFunc(places, func(p rnbd.Reservation) bool {
			return slices.ContainsFunc(p.Writers, func(t rnbd.Token) bool { return t.Attachment == id })
		})
	}
	for _, p := range all {
		for _, t := range p.Writers {
			if mayWrite(s.w.places, t.Attachment) {
				continue
			}
			a := s.w.admitted[t.Attachment]
			if a == nil {
				a = &admission{client: t.Peer}
				s.w.admitted[t.Attachment] = a
			}
			a.at = append(a.at, s.w.now())
		}
	}
	s.w.places = slices.Clone(all)
	return nil
}

// session notes that the server knows nothing of a client from before.
func (s *server) session(i rtrs.SessionInfo) (rtrs.ServerHandler, error) {
	at := s.w.now()
	s.w.mu.Lock()
	s.w.begun = append(s.w.begun, began{i.Peer, at})
	s.w.mu.Unlock()
	return s.nb.NewSession(i)
}

// kill ends the server's process as SIGKILL does, or with power as a power cut. Its host
// says nothing about it if it is silent, until it is back.
func (s *server) kill(power, silent bool) {
	w := s.w
	s.die()
	s.store.kill()
	if silent {
		w.host.Hold(true)
	}
	s.deafen()
	if !silent {
		w.host.Cut()
	}
	if power {
		w.disk.lose()
	}
	w.happens("server killed, power cut %v, silent %v", power, silent)
	w.disposal.Go(func() {
		s.accepting.Wait()
		s.rt.Close()
		s.nb.Close()
		s.dev.Close()
	})
}

// stop ends the run's last server.
func (s *server) stop() {
	s.deafen()
	s.accepting.Wait()
	if err := s.rt.Close(); err != nil {
		s.w.wrong("the server does not end: %v", err)
	}
	s.nb.Close()
	s.dev.Close()
}

// back brings the server's host up again, with a new process.
func (w *world) back() {
	w.host.Cut() // it knows nothing of the connections of before
	w.host.Hold(false)
	w.startServer()
}
