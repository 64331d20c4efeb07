package verbs

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// Registrations that overlap are refused or given as the model says, whatever is
// registered and gone by then (R18, R29).
func TestOverlappingRegistrationsAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dev, err := Open(Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		var pds []*PD
		for _, name := range []string{"a", "b"} {
			u, err := dev.NewULP(name, ULPConfig{Trust: ST})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range []TrustModel{SLT, ST, ST} {
				pd, err := u.AllocPDAs(m)
				if err != nil {
					t.Fatal(err)
				}
				pds = append(pds, pd)
			}
		}
		mem := make([]byte, 64)
		type reg struct {
			mr       *MR
			pd       *PD
			from, to int
			write    bool
		}
		var live []reg
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(live) > 0 && rapid.IntRange(0, 2).Draw(t, "end") == 0 {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				if err := live[i].mr.Deregister(); err != nil {
					t.Fatal(err)
				}
				live = append(live[:i], live[i+1:]...)
				continue
			}
			r := reg{pd: rapid.SampledFrom(pds).Draw(t, "pd"), from: rapid.IntRange(0, 63).Draw(t, "from"), write: rapid.Bool().Draw(t, "write")}
			r.to = rapid.IntRange(r.from+1, 64).Draw(t, "to")
			var foreign, untrusted bool
			for _, o := range live {
				switch {
				case o.from >= r.to || r.from >= o.to:
				case o.pd.ulp != r.pd.ulp:
					foreign = true
				case o.pd != r.pd && (o.write || r.write) && !(o.pd.trust.Alias && r.pd.trust.Alias):
					untrusted = true
				}
			}
			access := Access(0)
			if r.write {
				access = LocalWrite
			}
			before := dev.Usage()
			r.mr, err = r.pd.RegisterMR(mem[r.from:r.to], access)
			switch {
			case err == nil && !foreign && !untrusted:
				live = append(live, r)
			case err == nil:
				t.Fatalf("%d to %d is registered, foreign %v, untrusted %v", r.from, r.to, foreign, untrusted)
			case !(errors.Is(err, ErrForeignMemory) && foreign || errors.Is(err, ErrTrust) && untrusted):
				t.Fatalf("%d to %d, foreign %v, untrusted %v: %v", r.from, r.to, foreign, untrusted, err)
			case dev.Usage() != before:
				t.Fatal("a refused registration is charged")
			}
		}
		for _, r := range live {
			if err := r.mr.Deregister(); err != nil {
				t.Fatal(err)
			}
		}
		if dev.memory.root != nil {
			t.Fatal("the map of an empty device has an entry")
		}
	})
}

func BenchmarkRegisterAmongMany(b *testing.B) {
	e := newEnd(b, Config{})
	mem := make([]byte, 1<<20)
	for i := range 1 << 17 {
		if _, err := e.pd.RegisterMR(mem[i*8:i*8+8], LocalWrite); err != nil {
			b.Fatal(err)
		}
	}
	buf := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		mr, err := e.pd.RegisterMR(buf, LocalWrite|RemoteRead)
		if err != nil {
			b.Fatal(err)
		}
		mr.Deregister()
	}
}

func BenchmarkReregisterAmongMany(b *testing.B) {
	e := newEnd(b, Config{})
	mem := make([]byte, 1<<20)
	var mr *MR
	for i := range 1 << 17 {
		var err error
		if mr, err = e.pd.RegisterMR(mem[i*8:i*8+8], LocalWrite); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := mr.Reregister(0, 8, RemoteRead); err != nil {
			b.Fatal(err)
		}
	}
}
