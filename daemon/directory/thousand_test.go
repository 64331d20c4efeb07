package directory

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/gsi"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// subscriber is a host that has nothing but a stream with the manager, and a subscription.
type subscriber struct {
	*port
	wake  <-chan struct{} // not nil: it takes nothing from its stream until it is closed
	heard chan mad.Notice // of the events that it has answered; of those that are one too many it forgets them
}

// Receive implements gsi.Handler.
func (s *subscriber) Receive(l *gsi.Link, message []byte) {
	if s.wake != nil {
		<-s.wake
	}
	s.port.Receive(l, message)
}

// take answers a report.
func (s *subscriber) take(p mad.Packet) {
	sa, err := mad.ParseSA(&p.MAD)
	if err != nil || sa.Method != mad.MethodReport {
		return
	}
	n, err := mad.ParseNotice(sa.Data[:mad.NoticeLen])
	if err != nil {
		return
	}
	answer := sa.Answer(mad.StatusOK)
	answer.Data = sa.Data
	s.send(mad.Packet{MAD: answer.MAD()})
	select {
	case s.heard <- n:
	default:
	}
}

// crowd are n subscribers to the exports that come, each with a TCP connection of its own over loopback from an address of its own; the first `stuck` of
// them take nothing from their streams.
func crowd(t testing.TB, alpha *testHost, n, stuck int) (all []*subscriber) {
	t.Helper()
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 7, byte(i >> 8), byte(i)}) }
	var peers []netip.Addr
	for i := range n + 1 {
		peers = append(peers, addr(i))
	}
	plain := transport.Plaintext(slog.New(slog.DiscardHandler), peers...)
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	ulp, err := dev.NewULP("crowd", verbs.ULPConfig{Privileged: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	wake := make(chan struct{})
	var wg sync.WaitGroup
	ln, err := alpha.dev.Listen(ctx, netip.AddrPortFrom(addr(n), 0), verbs.ListenConfig{Transport: &transport.Config{Protector: plain}})
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { alpha.accept(ctx, ln) })
	t.Cleanup(func() {
		close(wake)
		cancel()
		ln.Close()
		wg.Wait()
	})
	for i := range n {
		s := &subscriber{port: newPort(GUIDOf(alpha.name)), heard: make(chan mad.Notice, 64)}
		if i < stuck {
			s.wake = wake
		}
		l, err := gsi.Dial(ctx, ulp, verbs.DialConfig{Remote: ln.Addr(), Transport: &transport.Config{Protector: plain, Local: addr(i)}}, s)
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		s.link = l
		s.send(mad.Packet{MAD: request(mad.MethodSet, mad.AttrInformInfo, 0, 1, mad.InformInfo{
			LIDBegin: mad.InformAllLIDs, Subscribe: 1, QPN: 1, Type: mad.InformAllTypes, TrapNumber: mad.VendorExportCome, ProducerType: mad.Vendor,
		})})
		wg.Go(func() { s.run(ctx, s.take) })
		all = append(all, s)
	}
	return all
}

// An event reaches a thousand hosts, each by a stream of its own, and some that take nothing from theirs hold up nobody and cost a bounded memory.
func TestEventReachesAThousandHosts(t *testing.T) {
	hosts, stuck := 1000, 10
	if raceEnabled {
		hosts = 200 // a thousand take 2 GiB then
	}
	s := newSite(t, "alpha")
	alpha := s.hosts[0]
	alpha.start(conf.Default(), "alpha")
	alpha.awaitMaster()
	var before, with, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	all := crowd(t, alpha, hosts, stuck)
	until(t, func() bool {
		v, _ := alpha.dir.View()
		return len(v.Subscriptions) == hosts+8
	})
	runtime.GC()
	runtime.ReadMemStats(&with)
	tell := func(id uint64) time.Duration {
		begun := time.Now()
		alpha.announce(Service{Name: fmt.Sprintf("disk%d", id), Kind: Export, Size: id})
		deadline := time.After(time.Minute)
		for _, one := range all[stuck:] {
			for got := false; !got; {
				select {
				case n := <-one.heard:
					d, err := n.Export()
					got = err == nil && d.Size == id
				case <-deadline:
					t.Fatalf("a host has not heard of event %d", id)
				}
			}
		}
		return time.Since(begun)
	}
	for id := range uint64(20) {
		if took := tell(id + 1); id == 0 {
			t.Logf("the first event is at %d hosts after %v", hosts-stuck, took)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("a stream costs %d bytes at both ends; 20 events cost %d bytes", (with.HeapAlloc-before.HeapAlloc)/uint64(hosts), int64(after.HeapAlloc)-int64(with.HeapAlloc))
	if cost := (with.HeapAlloc - before.HeapAlloc) / uint64(hosts); cost > 2<<20 {
		t.Errorf("a stream costs %d bytes", cost)
	}
	v, _ := alpha.dir.View()
	silent := 0
	for _, sub := range v.Subscriptions {
		switch {
		case sub.Owner.GUID == GUIDOf("alpha") || sub.Reported == 20:
		case sub.Reported == 16: // as many as one is sent before it answers: the rest waits in the directory, up to its bound
			silent++
		default:
			t.Errorf("a host was sent %d events", sub.Reported)
		}
	}
	if silent != stuck {
		t.Errorf("%d hosts have not answered", silent)
	}
}
