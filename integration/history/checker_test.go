package history

import (
	"testing"

	"github.com/ironwarp/ironwarp/integration/history/register"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// builder makes a history of one block, a unit of time at a time.
type builder struct {
	r *recorder
	n int64
}

func newBuilder() *builder { return &builder{r: newRecorder()} }

func (m *builder) tick() int64 {
	m.n++
	return m.n
}

// conn opens a connection in an attachment's epoch.
func (m *builder) conn(epoch int) *session {
	s := &session{number: len(m.r.sessions) + 1, disk: 1, epoch: epoch, start: m.tick(), end: register.Never}
	m.r.sessions = append(m.r.sessions, s)
	return s
}

func (m *builder) begin(c *session, k opKind, value uint32, fua bool) *op {
	o := &op{kind: k, disk: 1, blocks: 1, write: value, fua: fua, conn: c, call: m.tick(), ret: register.Never, out: unknown}
	if k == opRead {
		for range blockSize / sector {
			o.seen = append(o.seen, []uint32{value})
		}
	}
	m.r.ops = append(m.r.ops, o)
	return o
}

func (m *builder) end(o *op, out outcome) { o.ret, o.out = m.tick(), out }

func (m *builder) do(c *session, k opKind, value uint32) {
	m.end(m.begin(c, k, value, false), succeeded)
}

func (m *builder) kill(c *session) { c.end = m.tick() }

func (m *builder) cut() {
	e := event{disk: 1, call: m.tick()}
	e.ret = m.tick()
	m.r.events = append(m.r.events, e)
}

// TestChecker has the checker judge histories of which a reader sees whether they are
// right.
func TestChecker(t *testing.T) {
	if checks.Weakened {
		t.Skip("the checker is the same in both builds")
	}
	for _, x := range []struct {
		name  string
		right bool
		make  func(m *builder)
	}{
		{"a read returns what was written", true, func(m *builder) {
			c := m.conn(1)
			m.do(c, opWrite, 1)
			m.do(c, opRead, 1)
		}},
		{"a read returns what was there before", false, func(m *builder) {
			c := m.conn(1)
			m.do(c, opWrite, 1)
			m.do(c, opWrite, 2)
			m.do(c, opRead, 1)
		}},
		{"a read beside a write returns either", true, func(m *builder) {
			c, d := m.conn(1), m.conn(1)
			m.do(c, opWrite, 1)
			w := m.begin(c, opWrite, 2, false)
			m.do(d, opRead, 1)
			m.do(d, opRead, 2)
			m.end(w, succeeded)
		}},
		{"a read beside a write sees it come and go", false, func(m *builder) {
			c, d := m.conn(1), m.conn(1)
			m.do(c, opWrite, 1)
			w := m.begin(c, opWrite, 2, false)
			m.do(d, opRead, 2)
			m.do(d, opRead, 1)
			m.end(w, succeeded)
		}},
		{"a dead client's write lands before its successor's", true, func(m *builder) {
			c := m.conn(1)
			m.begin(c, opWrite, 1, false)
			m.kill(c)
			d := m.conn(1)
			m.do(d, opWrite, 2)
			m.do(d, opRead, 2)
		}},
		{"a dead client's write lands after its successor's", false, func(m *builder) {
			c := m.conn(1)
			m.begin(c, opWrite, 1, false)
			m.kill(c)
			d := m.conn(1)
			m.do(d, opWrite, 2)
			m.do(d, opRead, 1)
		}},
		{"a dead client's write lands after its successor's read", false, func(m *builder) {
			c := m.conn(1)
			m.begin(c, opWrite, 1, false)
			m.kill(c)
			d := m.conn(1)
			m.do(d, opRead, 0)
			m.do(d, opRead, 1)
		}},
		{"a dead client's write lands beside that of one who was there before", true, func(m *builder) {
			c, d := m.conn(1), m.conn(1)
			m.begin(c, opWrite, 1, false)
			m.kill(c)
			m.do(d, opWrite, 2)
			m.do(d, opRead, 2)
			m.do(d, opRead, 1)
		}},
		{"a write that failed lands later", false, func(m *builder) {
			c := m.conn(1)
			m.end(m.begin(c, opWrite, 1, false), failed)
			m.do(c, opRead, 0)
			m.do(c, opRead, 1)
		}},
		{"a write is sent again when the path is lost", true, func(m *builder) {
			c, d := m.conn(1), m.conn(1)
			w := m.begin(c, opWrite, 1, false)
			m.do(d, opRead, 1)
			m.do(d, opWrite, 2)
			m.do(d, opRead, 2)
			m.r.losses = append(m.r.losses, m.tick())
			m.end(w, succeeded)
			m.do(d, opRead, 1)
		}},
		{"a write is carried out twice on one path", false, func(m *builder) {
			c, d := m.conn(1), m.conn(1)
			w := m.begin(c, opWrite, 1, false)
			m.do(d, opRead, 1)
			m.do(d, opWrite, 2)
			m.do(d, opRead, 2)
			m.end(w, succeeded)
			m.do(d, opRead, 1)
		}},
		{"the power takes what was not flushed", true, func(m *builder) {
			c := m.conn(1)
			m.do(c, opWrite, 1)
			m.do(c, opFlush, 0)
			m.do(c, opWrite, 2)
			m.do(c, opWrite, 3)
			m.cut()
			m.do(c, opRead, 2)
		}},
		{"the power takes what was flushed", false, func(m *builder) {
			c := m.conn(1)
			m.do(c, opWrite, 1)
			m.do(c, opFlush, 0)
			m.cut()
			m.do(c, opRead, 0)
		}},
		{"the power takes what a flush was asked for before it was acknowledged", true, func(m *builder) {
			c := m.conn(1)
			f := m.begin(c, opFlush, 0, false)
			m.do(c, opWrite, 1)
			m.end(f, succeeded)
			m.cut()
			m.do(c, opRead, 0)
		}},
		{"the power takes what was written with FUA", false, func(m *builder) {
			c := m.conn(1)
			m.end(m.begin(c, opWrite, 1, true), succeeded)
			m.cut()
			m.do(c, opRead, 0)
		}},
		{"the power takes another sector's value twice", false, func(m *builder) {
			c := m.conn(1)
			m.do(c, opWrite, 1)
			m.cut()
			m.do(c, opRead, 0)
			m.do(c, opRead, 1)
		}},
		{"a flush vouches for what the power took", false, func(m *builder) {
			c := m.conn(1)
			m.do(c, opWrite, 1)
			m.cut()
			m.do(c, opFlush, 0)
			m.do(c, opRead, 0)
		}},
		{"a flush of the next attachment vouches for nothing of the last", true, func(m *builder) {
			c := m.conn(1)
			m.do(c, opWrite, 1)
			m.cut()
			d := m.conn(2)
			m.do(d, opFlush, 0)
			m.do(d, opRead, 0)
		}},
		{"a flush vouches for what the power left by chance", true, func(m *builder) {
			c := m.conn(1)
			m.do(c, opWrite, 1)
			m.cut()
			m.do(c, opFlush, 0)
			m.do(c, opRead, 1)
		}},
		{"a flush fails while nothing is at risk", false, func(m *builder) {
			c := m.conn(1)
			m.do(c, opWrite, 1)
			m.do(c, opFlush, 0)
			m.cut()
			m.end(m.begin(c, opFlush, 0, false), failed)
		}},
		{"a flush fails because the power took something", true, func(m *builder) {
			c := m.conn(1)
			m.do(c, opWrite, 1)
			m.cut()
			m.end(m.begin(c, opFlush, 0, false), failed)
		}},
		{"a flush fails in the attachment after that", false, func(m *builder) {
			c := m.conn(1)
			m.do(c, opWrite, 1)
			m.cut()
			m.end(m.begin(m.conn(2), opFlush, 0, false), failed)
		}},
		{"what was flushed before the power went is in another's place", false, func(m *builder) {
			c := m.conn(1)
			m.do(c, opWrite, 1)
			m.r.events = append(m.r.events, event{disk: 1, call: m.tick(), ret: m.tick(), set: make([]uint32, 8)})
			m.do(c, opRead, 1)
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			m := newBuilder()
			x.make(m)
			for _, o := range m.r.ops {
				if o.out == unknown {
					o.ret = o.conn.end
				}
			}
			if wrong := m.r.judge(t, false); (len(wrong) == 0) != x.right {
				t.Errorf("the checker says %q", wrong)
			}
		})
	}
}

// TestTags: the content of a sector shows where it belongs.
func TestTags(t *testing.T) {
	p := make([]byte, blockSize)
	fillBlock(p, 1, 3, 9)
	if seen, err := readTags(p, 1, 3); err != nil || len(seen) != 8 || len(seen[7]) != 1 || seen[7][0] != 9 {
		t.Errorf("seen %v, %v", seen, err)
	}
	if _, err := readTags(p, 2, 3); err == nil {
		t.Error("it is taken for another disk's")
	}
	if _, err := readTags(p, 1, 4); err == nil {
		t.Error("it is taken for another block's")
	}
	fillBlock(p[:sector], 1, 3, 10)
	copy(p[sector/2:sector], p[sector:sector+sector/2]) // of the sector after it
	if _, err := readTags(p, 1, 3); err == nil {
		t.Error("half a sector of elsewhere is not noticed")
	}
}
