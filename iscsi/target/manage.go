package target

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// Origin is what is known of a connection before its initiator has said anything.
type Origin struct {
	Peer          string // whom Config.PeerOf knows it to be from, "" if nobody has told
	Local, Remote netip.AddrPort
	InRDMA        bool // it is in RDMA mode from its first byte on
}

// IO counts commands that moved data, and those that ended with CHECK CONDITION.
type IO struct{ Reads, Writes, ReadBytes, WriteBytes, Errors uint64 }

// Info is what is known of a target.
type Info struct {
	Logins, Refused uint64
	LUNs            map[uint16]IO
	// Latency is what the commands of a LUN took that had no error, from their coming to their answers: those with data for
	// the initiator are reads, those with data for the LUN writes, SYNCHRONIZE CACHE is a flush.
	Latency map[uint16]block.LatencyCounts
}

// SessionInfo is what is known of a session.
type SessionInfo struct {
	TSIH                   uint16
	Target, Initiator      string // Target is "" in a discovery session without one
	ISID                   [6]byte
	CHAPName               string // who was authenticated, "" if nobody
	Discovery              bool
	Origin                 Origin
	Since                  time.Time
	HeaderDigest, DataSums bool   // CRC32C is used
	Transport              string // TCP or ISER
	ErrorRecoveryLevel     uint32
	Connections            int // in full feature phase, or about to be
	Failed                 int // that have ended, and whose commands wait for another
	Active                 int // commands under way
	IO                     IO
}

// counters are an IO that is being counted.
type counters struct{ reads, writes, readBytes, writeBytes, errors atomic.Uint64 }

// count counts a command that has ended; in is how many bytes it has for its initiator.
func (c *counters) count(t *task, in uint32) {
	switch {
	case t.Status == scsi.CheckCondition:
		c.errors.Add(1)
	case in > 0:
		c.reads.Add(1)
		c.readBytes.Add(uint64(in))
	case t.Out && len(t.Buf) > 0:
		c.writes.Add(1)
		c.writeBytes.Add(uint64(len(t.Buf)))
	}
}

func (c *counters) io() IO {
	return IO{Reads: c.reads.Load(), Writes: c.writes.Load(), ReadBytes: c.readBytes.Load(), WriteBytes: c.writeBytes.Load(), Errors: c.errors.Load()}
}

// lunCounters are those of a LUN, and what its commands take.
type lunCounters struct {
	counters
	latency block.Latency
}

// count counts a command that has ended; in is how many bytes it has for its initiator.
func (c *lunCounters) count(t *task, in uint32) {
	c.counters.count(t, in)
	if t.Status != scsi.Good {
		return
	}
	switch {
	case t.CDB[0] == scsi.SynchronizeCache10 || t.CDB[0] == scsi.SynchronizeCache16:
		c.latency.Observe(block.OpFlush, time.Since(t.came))
	case in > 0:
		c.latency.Observe(block.OpRead, time.Since(t.came))
	case t.Out && len(t.Buf) > 0:
		c.latency.Observe(block.OpWrite, time.Since(t.came))
	}
}

// tally counts what a target does, whatever it is set to meanwhile.
type tally struct {
	logins, refused atomic.Uint64

	mu   sync.Mutex // guards the fields below it; innermost
	luns map[uint16]*lunCounters
}

// lun returns the counters of a LUN.
func (t *tally) lun(n uint16) *lunCounters {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.luns[n]
	if c == nil {
		if t.luns == nil {
			t.luns = map[uint16]*lunCounters{}
		}
		c = &lunCounters{}
		t.luns[n] = c
	}
	return c
}

// Set offers a target, in place of the one of its name if there is one. Sessions that this one has
// go on as they are: End ends those that may not. It fails with ErrName, and if credentials are not
// what they should be (package chap).
func (s *Server) Set(t *Target) error {
	if err := t.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setLocked(t)
	return nil
}

func (t *Target) check() error {
	if !iscsi.IsName(t.Name) {
		return fmt.Errorf("%q: %w", t.Name, ErrName)
	}
	if err := chap.CheckAll(t.CHAP); err != nil {
		return fmt.Errorf("target %s: credentials %w", t.Name, err)
	}
	return nil
}

func (s *Server) setLocked(t *Target) {
	t.tally = &tally{}
	if old := s.targets[t.Name]; old != nil {
		t.tally = old.tally
	}
	if d := t.Device; d != nil && d.Name == "" {
		d.Name, d.PortalGroup = t.Name, s.cfg.PortalGroup
	}
	s.targets[t.Name] = t
}

// Remove stops offering a target. Its sessions go on until End ends them.
func (s *Server) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.targets, name)
}

// End asks the initiators of the sessions that which picks to log out, and ends those that do not within
// Config.LogoutWait. It returns the sessions. Each channel is closed when nothing of its session is under
// way any more.
func (s *Server) End(which func(SessionInfo) bool) (ended []SessionInfo, over []<-chan struct{}) {
	return s.endBy((*session).quit, which)
}

// Drop is End for initiators that may not go on: they are told, and their sessions end at once.
func (s *Server) Drop(which func(SessionInfo) bool) (ended []SessionInfo, over []<-chan struct{}) {
	return s.endBy((*session).drop, which)
}

func (s *Server) endBy(end func(*session), which func(SessionInfo) bool) (ended []SessionInfo, over []<-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		if i := x.info(); which(i) {
			end(x)
			ended, over = append(ended, i), append(over, x.over)
		}
	}
	return ended, over
}

// Sessions lists the sessions in the order of their handles.
func (s *Server) Sessions() []SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]SessionInfo, 0, len(s.sessions))
	for _, x := range s.sessions {
		all = append(all, x.info())
	}
	slices.SortFunc(all, func(a, b SessionInfo) int { return cmp.Compare(a.TSIH, b.TSIH) })
	return all
}

func (x *session) info() SessionInfo {
	l := x.login
	i := SessionInfo{TSIH: x.tsih, Target: l.TargetName, Initiator: l.InitiatorName, ISID: l.ISID, CHAPName: l.CHAPName, Discovery: l.Discovery,
		Origin: x.origin, Since: x.since, HeaderDigest: l.Values[iscsi.KeyHeaderDigest] == iscsi.DigestCRC32C, DataSums: l.Values[iscsi.KeyDataDigest] == iscsi.DigestCRC32C, Transport: transportOf(l), IO: x.counted.io()}
	x.mu.Lock()
	defer x.mu.Unlock()
	i.Active, i.ErrorRecoveryLevel, i.Connections, i.Failed = x.active, x.level, len(x.conns), len(x.failed)
	return i
}

// Info describes a target. It reports whether it is offered.
func (s *Server) Info(name string) (i Info, ok bool) {
	s.mu.Lock()
	t := s.targets[name]
	s.mu.Unlock()
	if t == nil {
		return i, false
	}
	i = Info{Logins: t.tally.logins.Load(), Refused: t.tally.refused.Load(), LUNs: map[uint16]IO{}, Latency: map[uint16]block.LatencyCounts{}}
	t.tally.mu.Lock()
	defer t.tally.mu.Unlock()
	for n, c := range t.tally.luns {
		i.LUNs[n], i.Latency[n] = c.io(), c.latency.Counts()
	}
	return i, true
}
