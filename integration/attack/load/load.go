// Package load has many attackers flood a daemon at the same time, in each way that they
// can, while a stream that behaves does its work beside them. The attackers are peers
// that the daemon knows: without a security association nobody comes this far.
//
// The test shows that the stream lives and that newcomers get in; `make bench
// ROWS=attack` measures what each attack costs it.
package load

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// Attackers is how many attack at a time.
const Attackers = 32

// Target is the daemon under attack.
type Target struct {
	Addr    netip.AddrPort // of TCP; its port is SCTP's, too
	UDP     uint16         // port of SCTP in UDP
	Control string         // its control socket
}

// Attack is what attackers do.
type Attack struct {
	Name string
	// Carrier is that of the stream which suffers from it.
	Carrier transport.Kind
	// Bounded attacks come to rest by themselves, when the daemon gives no more.
	Bounded bool
	// Packets are of no association and sent at a fixed rate, which takes its share of a
	// machine however slow that is.
	Packets bool
	run     func(a *attacker)
}

// Export is the disk that the daemon exports to all.
const Export = "disk"

// Config is the main file of a daemon at t that exports image, but for its
// directories, and the addresses of its peers. The first two are not attackers'.
func Config(t Target, image string) (config string, peers []netip.Addr) {
	var b, allow strings.Builder
	fmt.Fprintf(&b, "listen: {port: %d, udp_port: %d, addresses: [%s]}\npeers:\n", t.Addr.Port(), t.UDP, t.Addr.Addr())
	for i := range 2 + Attackers {
		addr := netip.AddrFrom4([4]byte{127, 0, 66, byte(1 + i)})
		peers = append(peers, addr)
		fmt.Fprintf(&b, "  - {name: peer%d, address: %s, local_address: %s, port: %d, udp_port: %d, protection: loopback, transport: auto}\n", i, addr, t.Addr.Addr(), t.Addr.Port(), t.UDP)
		fmt.Fprintf(&allow, " peer%d,", i)
	}
	fmt.Fprintf(&b, "exports:\n  - {name: %s, path: %q, allow: [%s]}\n", Export, image, strings.TrimSuffix(allow.String(), ","))
	return b.String(), peers
}

// attacker is one of the attackers.
type attacker struct {
	Target
	ctx   context.Context
	from  netip.Addr
	n     int
	count *atomic.Uint64
	rests func() // the daemon has given it no more for the first time
}

// did counts what the attacker did, and reports whether it goes on.
func (a *attacker) did(n int) bool {
	a.count.Add(uint64(n))
	runtime.Gosched() // lets others of this process have their turn
	return a.ctx.Err() == nil
}

// rest waits for a moment, after what did not work.
func (a *attacker) rest(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-a.ctx.Done():
	}
}

// dial connects by TCP, nil if that does not work. The attack's end closes the
// connection.
func (a *attacker) dial() *net.TCPConn {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(a.from, 0)), Timeout: attackTime}
	c, err := d.DialContext(a.ctx, "tcp", a.Addr.String())
	if err != nil {
		a.rest(time.Millisecond)
		return nil
	}
	conn := c.(*net.TCPConn)
	// A reset leaves no port behind.
	_ = conn.SetLinger(0)
	_ = conn.SetDeadline(time.Now().Add(attackTime))
	return conn
}

// attackTime bounds what an attacker waits for.
const attackTime = 10 * time.Second

// closing closes c when the attack ends, unless it was closed before.
func (a *attacker) closing(c interface{ Close() error }) (closeNow func()) {
	stop := context.AfterFunc(a.ctx, func() { c.Close() })
	return func() {
		stop()
		c.Close()
	}
}

// Running is an attack under way.
type Running struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	count  atomic.Uint64
	busy   atomic.Int64 // attackers that the daemon has always given more so far
}

// Start begins an attack, by one attacker from each of the addresses.
func (x Attack) Start(ctx context.Context, t Target, from []netip.Addr) *Running {
	r := &Running{}
	ctx, r.cancel = context.WithCancel(ctx)
	r.busy.Store(int64(len(from)))
	for i, addr := range from {
		a := &attacker{Target: t, ctx: ctx, from: addr, n: i, count: &r.count, rests: sync.OnceFunc(func() { r.busy.Add(-1) })}
		r.wg.Go(func() {
			for ctx.Err() == nil {
				x.run(a)
			}
		})
	}
	return r
}

// Count is how many blows there were so far.
func (r *Running) Count() uint64 { return r.count.Load() }

// AtRest reports whether each attacker of a bounded attack has been given no more.
func (r *Running) AtRest() bool { return r.busy.Load() == 0 }

// Stop ends the attack and waits until all attackers have gone.
func (r *Running) Stop() {
	r.cancel()
	r.wg.Wait()
}

// Behaving is no attack: peers that read from the disk as much as they get. What a
// stream has beside them is its fair share.
func Behaving(k transport.Kind) Attack {
	return Attack{Name: "as many that behave over " + k.String(), Carrier: k, run: func(a *attacker) {
		s, err := Dial(a.ctx, a.Target, a.from, k, Export)
		if err != nil {
			a.rest(time.Millisecond)
			return
		}
		defer s.Close()
		for a.did(1) {
			if _, err := s.Bandwidth(a.ctx, time.Second); err != nil {
				return
			}
		}
	}}
}

// Attacks are all of them.
func Attacks() []Attack { return append(append(tcpAttacks(), sctpAttacks()...), controlAttack) }
