package rtrs

import (
	"maps"
	"sync"
	"sync/atomic"
	"syscall"
)

// Stats counts completed I/O since the session began, over all connections and
// incarnations.
type Stats struct {
	Reads, Writes         uint64 // completed, with or without an error; control requests included
	ReadBytes, WriteBytes uint64 // of those without an error
	ReadErrors            uint64
	WriteErrors           uint64
}

// Add adds o's counts to s.
func (s *Stats) Add(o Stats) {
	s.Reads += o.Reads
	s.Writes += o.Writes
	s.ReadBytes += o.ReadBytes
	s.WriteBytes += o.WriteBytes
	s.ReadErrors += o.ReadErrors
	s.WriteErrors += o.WriteErrors
}

func (s *Stats) count(dir Dir, n uint32, errno syscall.Errno) {
	if dir == Read {
		s.Reads++
		if errno != 0 {
			s.ReadErrors++
			return
		}
		s.ReadBytes += uint64(n)
		return
	}
	s.Writes++
	if errno != 0 {
		s.WriteErrors++
		return
	}
	s.WriteBytes += uint64(n)
}

// tally counts by kind what is rare.
type tally struct {
	mu sync.Mutex // guards the fields below it; innermost
	n  map[string]uint64
}

func (t *tally) add(kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == nil {
		t.n = make(map[string]uint64)
	}
	t.n[kind]++
}

func (t *tally) snapshot() map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.n)
}

// counters are Stats for concurrent use.
type counters struct {
	reads, writes, readBytes, writeBytes, readErrors, writeErrors atomic.Uint64
}

func addNonZero(c *atomic.Uint64, n uint64) {
	if n != 0 {
		c.Add(n)
	}
}

func (c *counters) add(s *Stats) {
	addNonZero(&c.reads, s.Reads)
	addNonZero(&c.writes, s.Writes)
	addNonZero(&c.readBytes, s.ReadBytes)
	addNonZero(&c.writeBytes, s.WriteBytes)
	addNonZero(&c.readErrors, s.ReadErrors)
	addNonZero(&c.writeErrors, s.WriteErrors)
}

func (c *counters) snapshot() Stats {
	return Stats{
		Reads: c.reads.Load(), Writes: c.writes.Load(),
		ReadBytes: c.readBytes.Load(), WriteBytes: c.writeBytes.Load(),
		ReadErrors: c.readErrors.Load(), WriteErrors: c.writeErrors.Load(),
	}
}
