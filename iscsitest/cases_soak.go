package iscsitest

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/ironwarp/ironwarp/scsi"
)

// oracle knows what has to be on blocks: it writes them, and looks at what is read.
type oracle struct {
	t     *T
	first uint32   // block of the unit
	block int      // bytes
	at    []uint64 // which write was the last of each block
	busy  []bool   // a command is under way
	next  uint64
}

// put writes what a block has to have.
func (o *oracle) put(b []byte, block int, write uint64) {
	for i := 0; i+16 <= len(b); i += 16 {
		binary.LittleEndian.PutUint64(b[i:], write*0x9e3779b97f4a7c15+uint64(i))
		binary.LittleEndian.PutUint64(b[i+8:], uint64(o.first)+uint64(block))
	}
}

// free returns n blocks in a row with which nothing is done, from a random one on; ok is false if there are none there.
func (o *oracle) free(n int) (at int, ok bool) {
	at = o.t.rng.IntN(len(o.at) - n + 1)
	for _, busy := range o.busy[at : at+n] {
		if busy {
			return at, false
		}
	}
	return at, true
}

// job is a command of a soak.
type job struct {
	task  *Task
	at, n int
	write uint64 // 0: a READ
}

// begin starts a command on n blocks.
func (o *oracle) begin(s *Session, n int) *job {
	at, ok := o.free(n)
	if !ok {
		return nil
	}
	j := &job{at: at, n: n}
	data := make([]byte, n*o.block)
	lba := o.first + uint32(at)
	if o.t.rng.IntN(2) == 0 {
		o.next++
		j.write = o.next
		for i := range n {
			o.put(data[i*o.block:(i+1)*o.block], at+i, j.write)
		}
		j.task = s.start(write10(lba, uint16(n)), data, nil, how{patient: true})
	} else {
		j.task = s.start(read10(lba, uint16(n)), nil, data, how{patient: true})
	}
	for i := range n {
		o.busy[at+i] = true
	}
	return j
}

// over takes the end of a command.
func (o *oracle) over(s *Session, j *job) {
	for i := range j.n {
		o.busy[j.at+i] = false
	}
	again := j.task.turnedAway() || j.task.Status == scsi.CheckCondition && j.task.Sense.Key == scsi.UnitAttention
	switch {
	case again: // nothing was done
		return
	case j.write != 0:
		s.good(j.task, "WRITE")
		for i := range j.n {
			o.at[j.at+i] = j.write
		}
		return
	}
	s.good(j.task, "READ")
	want := make([]byte, o.block)
	for i := range j.n {
		o.put(want, j.at+i, o.at[j.at+i])
		if got := j.task.In[i*o.block : (i+1)*o.block]; !bytes.Equal(got, want) {
			o.t.fail("block %d has %x ..., in place of %x ..., which was write %d", int(o.first)+j.at+i, got[:16], want[:16], o.at[j.at+i])
		}
	}
}

// soakBlocks is how many blocks each session of a soak has.
const soakBlocks = 512

func soakCases() []Case {
	return []Case{
		{ID: "soak.content", Source: "SBC-3 4.3, SAM-5 5.3", Says: "what was written last is what is read, whoever else reads and writes beside it, for as long as --soak says", Need: Data | Soak, run: func(t *T) {
			var sessions []*Session
			var oracles []*oracle
			for i := range 2 {
				s := t.login(options{initiator: i}).ready()
				o := &oracle{t: t, first: uint32(i) * soakBlocks, block: s.blockLen(), at: make([]uint64, soakBlocks), busy: make([]bool, soakBlocks), next: uint64(i) << 32}
				// All blocks are written once, so that each has something to be told from others by.
				for at := 0; at < soakBlocks; at += 64 {
					o.next++
					data := make([]byte, 64*o.block)
					for b := range 64 {
						o.put(data[b*o.block:(b+1)*o.block], at+b, o.next)
						o.at[at+b] = o.next
					}
					s.good(s.do(write10(o.first+uint32(at), 64), data, nil), "WRITE")
				}
				sessions, oracles = append(sessions, s), append(oracles, o)
			}
			end := time.Now().Add(t.o.Soak)
			jobs := make([][]*job, len(sessions))
			for done := false; !done; {
				done = time.Now().After(end)
				for i, s := range sessions {
					for tries := 0; !done && tries < 32 && len(jobs[i]) < 16 && s.window() > 0; tries++ {
						if j := oracles[i].begin(s, 1+t.rng.IntN(64)); j != nil {
							jobs[i] = append(jobs[i], j)
						}
					}
					for len(jobs[i]) > 0 {
						j := jobs[i][0]
						s.waitFor(j.task)
						jobs[i] = jobs[i][1:]
						oracles[i].over(s, j)
						if !done {
							break
						}
					}
				}
			}
			for i, s := range sessions {
				for at := range soakBlocks / 64 {
					in := make([]byte, 64*oracles[i].block)
					k := s.do(read10(oracles[i].first+uint32(at*64), 64), nil, in)
					oracles[i].over(s, &job{task: k, at: at * 64, n: 64})
				}
			}
		}},
	}
}
