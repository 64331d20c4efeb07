// Package names finds peers that are declared by DNS names. It looks the names up at intervals, and when a link is
// broken, and says where a peer is to be looked for; who is there, IKE decides.
package names

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/internal/rate"
)

// Peer is a peer that is declared by a name.
type Peer struct {
	Name string
	Host string     // the DNS name
	At   netip.Addr // where it is; zero: that is not known
	Link Link
}

// Config is what a Finder has of its daemon.
type Config struct {
	Log *slog.Logger
	// Lookup asks for the addresses of a name; nil: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Peers are those that are declared by names.
	Peers func() []Peer
	// Check says why an address cannot be that of a peer.
	Check func(peer string, a netip.Addr) error
	// Move has a peer be at an address, and reports false if it has to be asked again.
	Move func(ctx context.Context, peer string, a netip.Addr) bool
}

// Finder looks names up.
type Finder struct {
	cfg Config

	mu       sync.Mutex          // guards the fields below it
	trackers map[string]*tracker // by name; those of configured peers
}

// New makes a Finder. Run has it work.
func New(c Config) *Finder {
	if c.Lookup == nil {
		c.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			// With a dot at its end a name has no other in the domains that the resolver searches.
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host+".")
		}
	}
	return &Finder{cfg: c, trackers: map[string]*tracker{}}
}

// Note is what is to be said of a name: why it has no address, or that it has another one now.
func (f *Finder) Note(host string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.trackers[host]; t != nil {
		return t.note
	}
	return ""
}

// Run looks names up until the context ends.
func (f *Finder) Run(ctx context.Context) {
	for now := range rate.Ticks(ctx, tickEvery) {
		f.round(ctx, now)
	}
}

// round looks up the names that are due, and moves peers.
func (f *Finder) round(ctx context.Context, now time.Time) {
	due := f.observe(now, f.cfg.Peers())
	if len(due) == 0 {
		return
	}
	answers := make([][]netip.Addr, len(due))
	errs := make([]error, len(due))
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxLookups)
	for i, p := range due {
		slots <- struct{}{}
		wg.Go(func() {
			answers[i], errs[i] = f.lookup(ctx, p.Host)
			<-slots
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return
	}
	for i, p := range due {
		if to := f.answered(time.Now(), p, answers[i], errs[i]); to.IsValid() {
			f.cfg.Log.Info("a peer is looked for at the address of its name", "peer", p.Name, "name", p.Host, "address", to, "was", p.At)
			if !f.cfg.Move(ctx, p.Name, to) {
				f.again(p.Host)
			}
		}
	}
}

// observe notes the states of all links, and returns the peers whose names are due.
func (f *Finder) observe(now time.Time, all []Peer) (due []Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	have := map[string]bool{}
	for _, p := range all {
		have[p.Host] = true
		t := f.trackers[p.Host]
		if t == nil {
			t = &tracker{at: p.At, moved: now.Add(-moveEvery)}
			f.trackers[p.Host] = t
		}
		t.observe(now, p.At, p.Link)
		if !now.Before(t.due) {
			due = append(due, p)
		}
	}
	for host := range f.trackers {
		if !have[host] {
			delete(f.trackers, host)
		}
	}
	return due
}

// answered has the tracker of a peer decide.
func (f *Finder) answered(now time.Time, p Peer, answers []netip.Addr, err error) netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.trackers[p.Host]
	if t == nil {
		return netip.Addr{}
	}
	before := t.note
	to := t.answered(now, answers, err, p.Link, func(a netip.Addr) error { return f.cfg.Check(p.Name, a) })
	if t.note != "" && t.note != before {
		f.cfg.Log.Warn("the name of a peer", "peer", p.Name, "name", p.Host, "note", t.note)
	}
	return to
}

// again has a name be due at once.
func (f *Finder) again(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.trackers[host]; t != nil {
		t.due, t.pause = time.Time{}, 0
	}
}

func (f *Finder) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	answers, err := f.cfg.Lookup(ctx, host)
	var dns *net.DNSError
	switch {
	case err == nil:
		return answers, nil
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &dns) && dns.IsTimeout:
		return nil, errSilent
	case errors.As(err, &dns) && dns.IsNotFound:
		return nil, errors.New("there is no such name, or it has no address")
	}
	return nil, err
}
