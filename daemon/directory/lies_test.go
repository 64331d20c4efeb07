package directory

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/gsi"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/verbs"
)

// falseManager is a manager that answers as it likes: by its identity it may, and it says that it is the master.
type falseManager struct {
	host   *testHost
	answer func(l *gsi.Link, sa mad.SA) []mad.MAD // to a request of the SA
	stream chan *gsi.Link                         // of the host that it lies to, the last ones
	wg     sync.WaitGroup
}

// lie has a host of the site be such a manager, and another one its member.
func (s *site) lie(of, to string, answer func(l *gsi.Link, sa mad.SA) []mad.MAD) (*falseManager, *testHost) {
	x := &falseManager{host: s.host(of), answer: answer, stream: make(chan *gsi.Link, 64)}
	ctx, cancel := context.WithCancel(context.Background())
	ln, err := x.host.dev.Listen(ctx, x.host.net.Addr(7472), verbs.ListenConfig{Transport: x.host.net.Transport()})
	if err != nil {
		s.t.Fatal(err)
	}
	accepting := make(chan []*gsi.Link, 1) // at its end: all streams
	go func() {
		var all []*gsi.Link
		defer func() { accepting <- all }()
		for {
			cr, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			if l, err := gsi.Accept(ctx, x.host.ulp, cr, x); err == nil {
				all = append(all, l)
				x.stream <- l
			}
		}
	}()
	s.t.Cleanup(func() {
		cancel()
		ln.Close()
		for _, l := range <-accepting {
			l.Close()
		}
		x.wg.Wait()
	})
	member := s.host(to)
	member.port = 7472
	member.start(conf.Default(), of)
	member.awaitMaster()
	return x, member
}

// Receive implements gsi.Handler.
func (x *falseManager) Receive(l *gsi.Link, message []byte) {
	p, err := mad.ParsePacket(message)
	if err != nil {
		return
	}
	var out []mad.MAD
	if smp, err := mad.ParseSMP(&p.MAD); err == nil && smp.Class == mad.ClassSubn {
		if smp.Attribute != mad.AttrSMInfo || smp.Method != mad.MethodGet {
			return
		}
		a := smp.Answer(mad.StatusOK)
		copy(a.Data[:], mad.SMInfo{GUID: GUIDOf(x.host.name), State: mad.SMMaster, Priority: 15}.Append(nil))
		out = []mad.MAD{a.MAD()}
	} else if sa, err := mad.ParseSA(&p.MAD); err == nil && sa.Class == mad.ClassSubnAdm {
		out = x.answer(l, sa)
	}
	x.wg.Go(func() {
		for _, m := range out {
			if l.Send(context.Background(), (&mad.Packet{MAD: m}).Append(nil)) != nil {
				return
			}
		}
	})
}

// taken answers requests to register something, and calls f with all others.
func taken(f func(sa mad.SA) []mad.MAD) func(*gsi.Link, mad.SA) []mad.MAD {
	return func(_ *gsi.Link, sa mad.SA) []mad.MAD {
		if sa.Method == mad.MethodSet {
			a := sa.Answer(mad.StatusOK)
			a.Data = sa.Data
			return []mad.MAD{a.MAD()}
		}
		return f(sa)
	}
}

// record answers with a ServiceRecord.
func record(sa mad.SA, r mad.ServiceRecord) mad.MAD {
	a := sa.Answer(mad.StatusOK)
	r.Append(a.Data[:0])
	return a.MAD()
}

// What a manager says of services is looked at for what it is: a name that is not the one that was asked for, or that no terminal should
// be sent, is no service.
func TestRecordsThatLie(t *testing.T) {
	for name, lie := range map[string]string{"another's name": "other", "with an escape": "disk\x1b[2J", "reads backwards": "disk\u202e", "in two": "disk\x00more"} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "alpha", "beta")
			r := mad.ServiceRecord{ID: IDOf(Export, "disk"), GID: gid(GUIDOf("alpha"))}
			copy(r.Name[:], lie)
			_, beta := s.lie("alpha", "beta", taken(func(sa mad.SA) []mad.MAD {
				if sa.Method == mad.MethodGetTable {
					head := sa.Answer(mad.StatusOK)
					head.AttributeOffset = mad.Offset(mad.ServiceRecordLen)
					sender, err := mad.NewSender(head, mad.AppendRow(nil, r))
					if err != nil {
						t.Error(err)
					}
					m, _ := sender.Next()
					return []mad.MAD{m}
				}
				return []mad.MAD{record(sa, r)}
			}))
			if found, err := beta.dir.Lookup(t.Context(), "disk", 0); err == nil && len(found) > 0 {
				t.Errorf("it finds %+v", found)
			} else if err != nil && strings.ContainsAny(err.Error(), "\x1b\u202e\x00") {
				t.Errorf("the error is %q", err)
			}
			all, err := beta.dir.Services(t.Context())
			if err != nil && strings.ContainsAny(err.Error(), "\x1b\u202e\x00") {
				t.Errorf("the error is %q", err)
			}
			for _, one := range all {
				if strings.ContainsAny(one.Name, "\x1b\u202e\x00") {
					t.Errorf("it lists %q", one.Name)
				}
			}
		})
	}
}

// The MTU of a path is one that there is, whatever a manager says.
func TestPathThatLies(t *testing.T) {
	for code, want := range map[uint8]int{mad.MTU256: 256, mad.MTU4096: 4096, 0: 0, 6: 0, 56: 0, 63: 0} {
		s := newSite(t, "alpha", "beta")
		_, beta := s.lie("alpha", "beta", taken(func(sa mad.SA) []mad.MAD {
			a := sa.Answer(mad.StatusOK)
			mad.PathRecord{DGID: gid(GUIDOf("alpha")), DLID: 3, MTU: code}.Append(a.Data[:0])
			return []mad.MAD{a.MAD()}
		}))
		all, err := beta.dir.Paths(t.Context())
		if err != nil || len(all) != len(s.hosts) {
			t.Fatalf("paths: %+v, %v", all, err)
		}
		for _, p := range all {
			if p.MTU != want {
				t.Errorf("the code %d is %d bytes, in place of %d", code, p.MTU, want)
			}
		}
	}
}

// A table without end, or with segments that are none, ends by an error and takes no more memory than a table may have.
func TestTablesThatLie(t *testing.T) {
	segment := func(sa mad.SA, no uint32, flags uint8, length uint32) mad.MAD {
		a := sa.Answer(mad.StatusOK)
		a.AttributeOffset = mad.Offset(mad.ServiceRecordLen)
		a.RMPP = mad.RMPP{Version: mad.RMPPVersion, Type: mad.RMPPData, Flags: mad.RMPPActive | flags, Segment: no, Length: length}
		return a.MAD()
	}
	for name, lie := range map[string]func(sa mad.SA, next *uint32) []mad.MAD{
		"without end": func(sa mad.SA, next *uint32) (out []mad.MAD) {
			for range mad.MaxWindow {
				*next++
				flags := uint8(0)
				if *next == 1 {
					flags = mad.RMPPFirst
				}
				out = append(out, segment(sa, *next, flags, 0xffffffff))
				if *next == 1 {
					break // the window opens behind it
				}
			}
			return out
		},
		"out of turn": func(sa mad.SA, _ *uint32) []mad.MAD { return []mad.MAD{segment(sa, 7, mad.RMPPFirst, 0)} },
		"beyond the window": func(sa mad.SA, _ *uint32) []mad.MAD {
			return []mad.MAD{segment(sa, 1, mad.RMPPFirst, 0), segment(sa, 2, 0, 0), segment(sa, 99, 0, 0)}
		},
		"longer than a MAD": func(sa mad.SA, _ *uint32) []mad.MAD {
			return []mad.MAD{segment(sa, 1, mad.RMPPFirst|mad.RMPPLast, 0xffffffff)}
		},
		"shorter than a head": func(sa mad.SA, _ *uint32) []mad.MAD { return []mad.MAD{segment(sa, 1, mad.RMPPFirst|mad.RMPPLast, 3)} },
		"rows of no length": func(sa mad.SA, _ *uint32) []mad.MAD {
			a := sa.Answer(mad.StatusOK)
			a.RMPP = mad.RMPP{Version: mad.RMPPVersion, Type: mad.RMPPData, Flags: mad.RMPPActive | mad.RMPPFirst | mad.RMPPLast, Segment: 1, Length: 220}
			return []mad.MAD{a.MAD()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "alpha", "beta")
			var next uint32 // touched by the goroutine of the stream alone
			_, beta := s.lie("alpha", "beta", taken(func(sa mad.SA) []mad.MAD {
				if sa.RMPP.Active() && sa.RMPP.Type != mad.RMPPAck {
					return nil
				}
				if sa.Attribute != mad.AttrServiceRecord {
					a := sa.Answer(mad.StatusNoRecords)
					return []mad.MAD{a.MAD()}
				}
				sa.Method = mad.MethodGetTable
				return lie(sa, &next)
			}))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			all, err := beta.dir.Services(ctx)
			if err == nil || len(all) > 0 {
				t.Errorf("it has %d services, %v", len(all), err)
			}
			if errors.Is(err, context.DeadlineExceeded) {
				t.Error("it waits for the end of what has none")
			}
			if !beta.connected() {
				t.Error("the stream has ended")
			}
		})
	}
}

// A manager whose stream ends while it is asked holds nobody up.
func TestQuestionWhoseStreamEnds(t *testing.T) {
	s := newSite(t, "alpha", "beta")
	asked := make(chan struct{}, 16)
	x, beta := s.lie("alpha", "beta", taken(func(sa mad.SA) []mad.MAD { asked <- struct{}{}; return nil }))
	done := make(chan error)
	for _, ask := range []func() error{
		func() error { _, err := beta.dir.Lookup(t.Context(), "disk", 0); return err },
		func() error { _, err := beta.dir.Services(t.Context()); return err },
	} {
		late := 0
		for range 3 {
			beta.awaitMaster()
			go func() { done <- ask() }()
			<-asked
			begun := time.Now()
			(<-x.stream).QP().Abort(errors.New("the manager is gone"))
			if err := <-done; !errors.Is(err, ErrNoMaster) {
				t.Errorf("after %v: %v", time.Since(begun), err)
			}
			if time.Since(begun) > askTime {
				late++
			}
			until(t, func() bool { return !beta.connected() })
		}
		if late > 1 { // one may be the machine's fault
			t.Errorf("%d of 3 that ask are held up for more than %v", late, askTime)
		}
	}
}

// A manager that takes what is announced and answers no Delete costs its host the time of one silence, and not of one for each.
func TestManagerThatDeletesNothing(t *testing.T) {
	t.Parallel() // it waits
	s := newSite(t, "alpha", "beta")
	var mu sync.Mutex // guards the field below it
	has := map[string]bool{}
	_, beta := s.lie("alpha", "beta", func(_ *gsi.Link, sa mad.SA) []mad.MAD {
		if sa.Method != mad.MethodSet {
			return nil
		}
		if r, err := mad.ParseServiceRecord(sa.Data[:mad.ServiceRecordLen]); err == nil && sa.Attribute == mad.AttrServiceRecord {
			mu.Lock()
			has[r.Name.String()] = true
			mu.Unlock()
		}
		a := sa.Answer(mad.StatusOK)
		a.Data = sa.Data
		return []mad.MAD{a.MAD()}
	})
	known := func(names ...string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, name := range names {
				if !has[name] {
					return false
				}
			}
			return true
		}
	}
	beta.announce(Service{Name: "a", Kind: Export}, Service{Name: "b", Kind: Export}, Service{Name: "c", Kind: Export})
	until(t, known("a", "b", "c"))
	begun := time.Now()
	beta.announce(Service{Name: "new", Kind: Export})
	until(t, known("new"))
	if took := time.Since(begun); took > 2*asks*askTime {
		t.Errorf("the new service is announced after %v", took)
	}
}
