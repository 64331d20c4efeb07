package sa

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// full is a directory of 1,000 hosts with 10 services each, all of them subscribed to all events.
func fullDirectory(b *testing.B) (*Server, time.Time) {
	b.Helper()
	now := time.Unix(1_800_000_000, 0)
	s := New(Config{Options: DefaultOptions(), GUID: manager})
	for h := range 1000 {
		guid := mad.GUID(0x10000 + h)
		if _, _, err := s.PortUp(now, Port{GUID: guid, Name: fmt.Sprintf("host%d", h)}); err != nil {
			b.Fatal(err)
		}
		for n := range 10 {
			v := serviceAt(uint64(n), guid, fmt.Sprintf("service%d.%d", h, n))
			s.Handle(now, Requester{GUID: guid}, by(guid).setService(v).packet(1))
		}
	}
	for h := range 1000 {
		guid := mad.GUID(0x10000 + h)
		s.Handle(now, Requester{GUID: guid}, by(guid).inform(toEverything()).packet(1))
	}
	return s, now
}

// receive gets a whole table, and returns its length in bytes.
func receive(b *testing.B, s *Server, now time.Time, a ask) int {
	out := s.Handle(now, a.from, a.packet(7))
	r := mad.NewReceiver(7, maxTable, mad.MaxWindow)
	for len(out) > 0 {
		var next []Outgoing
		for _, o := range out {
			m, err := mad.ParseSA(&o.Packet.MAD)
			if err != nil {
				b.Fatal(err)
			}
			ack, send, err := r.Receive(&m)
			if err != nil {
				b.Fatal(err)
			}
			if send {
				next = append(next, s.Handle(now, a.from, mad.Packet{MAD: ack})...)
			}
		}
		out = next
	}
	_, table := r.Answer()
	return len(table)
}

// The table of 10,000 services, both ends.
func BenchmarkGetTable(b *testing.B) {
	s, now := fullDirectory(b)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		if n := receive(b, s, now, by(0x10000).table(mad.AttrServiceRecord, 0, nil)); n != 10_000*mad.ServiceRecordLen {
			b.Fatal(n)
		}
	}
}

// One of 10,000 services, by its name.
func BenchmarkGetByName(b *testing.B) {
	s, now := fullDirectory(b)
	p := by(0x10000).to(mad.MethodGet, mad.AttrServiceRecord, mad.ServiceMaskName, serviceAt(0, 0, "service999.9")).packet(1)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		if out := s.Handle(now, Requester{GUID: 0x10000}, p); out[0].Packet.MAD.Header().Status != mad.StatusOK {
			b.Fatal(out[0].Packet.MAD.Header().Status)
		}
	}
}

// An event until 1,000 hosts have it and have answered.
func BenchmarkEventToAll(b *testing.B) {
	s, now := fullDirectory(b)
	n := s.gidNotice(mad.TrapGIDInService, gidOf(0x10000))
	b.ReportAllocs()
	for b.Loop() {
		out := s.Announce(now, n)
		if len(out) != 1000 {
			b.Fatal(len(out))
		}
		for _, o := range out {
			m, err := mad.ParseSA(&o.Packet.MAD)
			if err != nil {
				b.Fatal(err)
			}
			m.Method = mad.MethodReportResp
			s.Handle(now, Requester{GUID: o.To}, mad.Packet{MAD: m.MAD()})
		}
	}
}

// A renewal of one of 10,000 services.
func BenchmarkRenewal(b *testing.B) {
	s, now := fullDirectory(b)
	v := serviceAt(3, 0x10000+500, "service500.3")
	v.Lease = 600
	p := by(0x10000 + 500).setService(v).packet(1)
	b.ReportAllocs()
	for b.Loop() {
		s.Handle(now, Requester{GUID: 0x10000 + 500}, p)
	}
}

// The memory of a directory of 1,000 hosts and 10,000 services.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		s, now := fullDirectory(b)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
		s.Tick(now)
	}
}
