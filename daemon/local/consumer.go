package local

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/verbs"
)

// largeReads at a time over all disks of a ULP: 32 MiB of memory each.
const largeReads = 2

// Consumer is the account to which requests and attached disks are charged: root's, or that of a ULP of
// the configuration (RFC 5042 section 2.1.3). Only privileged consumers see or touch what another has.
type Consumer struct {
	Name  string // "": root
	Gate  *Gate
	Disks *verbs.ULP // what its disks are charged to
	Pings *verbs.ULP
	Large *nbd.LargeReads // of its disks; nil of root

	Requests sync.WaitGroup // and what else needs Disks or Pings
	Closing  sync.WaitGroup // sessions that were cut off

	mu  sync.Mutex // guards the fields below it
	cfg config.ULP
	// current ends when the ULP's rights or users have changed.
	current context.Context
	change  context.CancelFunc
}

// Declared is a ULP's configuration.
func (c *Consumer) Declared() config.ULP {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cfg
}

// Declare applies a declaration. Requests that are under way end. Later ones end with ctx.
func (c *Consumer) Declare(ctx context.Context, u config.ULP) {
	c.mu.Lock()
	before := c.change
	c.cfg = u
	c.current, c.change = context.WithCancel(ctx)
	c.mu.Unlock()
	if before != nil {
		before()
	}
}

// EndRequests ends the requests that are under way.
func (c *Consumer) EndRequests() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.change()
}

// Consumers are all local consumers.
type Consumers struct {
	Root         *Consumer
	UnknownUsers *Gate
	Pings        Turns
	config       func() *config.Config

	mu   sync.Mutex // guards the fields below it; taken before a Consumer's
	ulps map[string]*Consumer
}

// NewConsumers returns root alone. config is the configuration as it is now.
func NewConsumers(config func() *config.Config) *Consumers {
	return &Consumers{Root: &Consumer{Gate: RootGate()}, UnknownUsers: UnknownUsersGate(), config: config, ulps: map[string]*Consumer{}}
}

// Add admits the users of a ULP that is registered with the RNIC. Its requests end with ctx.
func (l *Consumers) Add(ctx context.Context, u config.ULP, rdma *verbs.ULP) {
	c := &Consumer{Name: u.Name, Gate: ULPGate(u.Privileged), Disks: rdma, Pings: rdma, Large: nbd.NewLargeReads(largeReads)}
	c.Declare(ctx, u)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ulps[u.Name] = c
}

// Remove makes a ULP's users unknown from now on.
func (l *Consumers) Remove(c *Consumer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ulps, c.Name)
}

// Find is the consumer of a name, root for "", and nil if there is none.
func (l *Consumers) Find(name string) *Consumer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.findLocked(name)
}

func (l *Consumers) findLocked(name string) *Consumer {
	if name == "" {
		return l.Root
	}
	return l.ulps[name]
}

// ULPs are all but root, by name.
func (l *Consumers) ULPs() []*Consumer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.ulps), func(a, b *Consumer) int { return strings.Compare(a.Name, b.Name) })
}

// Hold returns a consumer, and keeps it from being closed until Requests.Done, for work that is not a
// request; nil if there is none of that name.
func (l *Consumers) Hold(name string) *Consumer {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.findLocked(name)
	if c != nil {
		c.Requests.Add(1)
	}
	return c
}

// AsRoot is the caller that the host itself is.
func (l *Consumers) AsRoot() Caller { return Caller{Consumer: l.Root, Privileged: true} }

// Identify finds the account for a user's requests; false: there is none.
func (l *Consumers) Identify(u User) (Caller, bool) {
	who, ok := l.Admit(u)
	if ok {
		who.Requests.Done()
	}
	return who, ok
}

// Admit is Identify for a request, which ends with Requests.Done.
func (l *Consumers) Admit(u User) (who Caller, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A reload puts the configuration in force before it changes the ULPs, for which it takes the lock: with
	// an older one than theirs a user would have rights that nobody takes from him any more.
	if who, ok = l.identifyLocked(l.config(), u); ok {
		who.Label = u.Label
		who.Requests.Add(1)
	}
	return who, ok
}

func (l *Consumers) identifyLocked(cfg *config.Config, u User) (Caller, bool) {
	if u.IsRoot() {
		return l.AsRoot(), true
	}
	declared, ok := cfg.ULPOf(u.UID, u.GIDs)
	if !ok {
		return l.unknownUser()
	}
	c := l.ulps[declared.Name]
	if c == nil { // it is being added or removed
		return Caller{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return Caller{Consumer: c, UID: u.UID, Privileged: declared.Privileged, Rights: c.current}, true
}

// MayOpen reports whether a user may use the disks of a ULP: the ULP's users and root.
func (l *Consumers) MayOpen(u User, ulp string) bool {
	if opensAll(u) {
		return true
	}
	declared, ok := l.config().ULPOf(u.UID, u.GIDs)
	return ok && declared.Name == ulp
}

// Begin waits for the turn of a caller's request. end gives it back. It fails as Gate.Begin
// does.
func (l *Consumers) Begin(ctx context.Context, who Caller, r *http.Request) (end func(), err error) {
	return l.gateFor(who).Begin(ctx, who.Name, r)
}
