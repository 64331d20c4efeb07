package rnbd

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// goneModel is a disk with few blocks, whose clients come and die and whose path and
// storage stop and go on. Of each block it knows what it may have: the write that was
// acknowledged last, or one that was under way then or came later and has not been
// answered. Writes of a client that is gone may be carried out until somebody who
// came, or asked, later has an answer.
type goneModel struct {
	p       *path
	hold    sync.RWMutex // held: storage stands still
	stopped bool
	up      bool
	clients []*modelClient
	value   byte
	blocks  [4]modelBlock
}

type modelBlock struct {
	sure  byte          // what it has, if no write is open
	maybe map[byte]bool // writes that may still be carried out, or have been
}

type modelClient struct {
	c       *nbdtest.Client
	asked   map[uint64]asked
	cookies uint64
}

type asked struct {
	block int
	value byte // of a write
	read  bool
	may   map[byte]bool // what a read may find: what was possible since it was asked for
}

// TestNothingOfGoneClientsComesLateWhateverHappens draws runs of clients that write and
// read a few blocks, die, come back by another connection, and of a path and a storage
// that stop and go on.
func TestNothingOfGoneClientsComesLateWhateverHappens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 9999), 1, 40).Draw(rt, "steps")
		m := &goneModel{up: true}
		for i := range m.blocks {
			m.blocks[i].maybe = map[byte]bool{}
		}
		r := newRAM(int64(len(m.blocks)) * 4096)
		r.before = func(block.Op, int64, int64) syscall.Errno {
			m.hold.RLock()
			defer m.hold.RUnlock()
			return 0
		}
		if !t.Run("run", func(t *testing.T) {
			m.p = newPath(t, r)
			defer func() {
				if m.stopped {
					m.hold.Unlock()
				}
				m.p.link.set(true)
			}()
			for _, s := range steps {
				m.step(t, s)
			}
			m.settle(t)
		}) {
			rt.Fatalf("a run of %d steps: %v", len(steps), steps)
		}
	})
}

// step does what a number says: its last digit is what, the rest who and where.
func (m *goneModel) step(t *testing.T, n int) {
	action, block := n%10, n/10%len(m.blocks)
	if len(m.clients) == 0 && action < 7 {
		action = 7
	}
	pick := func() int { return n / 100 % len(m.clients) }
	switch {
	case action < 3: // write
		c, b := m.clients[pick()], block
		m.value++
		m.blocks[b].maybe[m.value] = true
		for _, o := range m.clients { // reads that are open may find it
			for _, a := range o.asked {
				if a.read && a.block == b {
					a.may[m.value] = true
				}
			}
		}
		c.ask(t, asked{block: b, value: m.value})
	case action < 4: // read
		c, b := m.clients[pick()], block
		may := map[byte]bool{m.blocks[b].sure: true}
		for v := range m.blocks[b].maybe {
			may[v] = true
		}
		c.ask(t, asked{block: b, read: true, may: may})
	case action < 5: // die; what was asked may still be carried out until a successor's answer
		i := pick()
		m.clients[i].c.Close()
		m.clients = append(m.clients[:i:i], m.clients[i+1:]...)
	case action < 7: // all that is asked is answered
		m.answers(t)
	case action < 8:
		if len(m.clients) < 4 {
			m.clients = append(m.clients, &modelClient{c: m.p.nbd.client(), asked: map[uint64]asked{}})
		}
	case action < 9:
		m.up = !m.up
		m.p.link.set(m.up)
	default:
		if m.stopped = !m.stopped; m.stopped {
			m.hold.Lock()
		} else {
			m.hold.Unlock()
		}
	}
}

func (c *modelClient) ask(t *testing.T, a asked) {
	c.cookies++
	c.asked[c.cookies] = a
	var err error
	if a.read {
		err = c.c.Send(0, nbdRead, c.cookies, uint64(a.block)*4096, 4096, nil)
	} else {
		err = c.c.Send(0, nbdWrite, c.cookies, uint64(a.block)*4096, 4096, filled(a.value))
	}
	if err != nil {
		t.Error(err)
	}
}

// answers lets everything go on and waits for all answers of those who live. An answer
// to one of them is after the end of all who died before it was asked for; so when all
// have been answered nothing is open but what was asked for by the dead since, of which
// there is nobody.
func (m *goneModel) answers(t *testing.T) {
	if m.stopped {
		m.stopped = false
		m.hold.Unlock()
	}
	if !m.up {
		m.up = true
		m.p.link.set(true)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(m.clients))
	for i, c := range m.clients {
		wg.Go(func() { errs[i] = c.collect() })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	m.look(t)
}

func (c *modelClient) collect() error {
	for len(c.asked) > 0 {
		r, err := c.c.Receive(func(k uint64) int {
			if c.asked[k].read {
				return 4096
			}
			return 0
		})
		if err != nil {
			return err
		}
		a, ok := c.asked[r.Cookie]
		delete(c.asked, r.Cookie)
		switch {
		case !ok || r.Error != 0:
			return fmt.Errorf("answer %+v", r)
		case a.read && (!a.may[r.Data[0]] || !bytes.Equal(r.Data, filled(r.Data[0]))):
			return fmt.Errorf("a read of block %d found %d, one of %v was possible", a.block, r.Data[0], a.may)
		}
	}
	return nil
}

// look has a new client read all blocks, twice: what it finds must have been possible,
// and stays.
func (m *goneModel) look(t *testing.T) {
	c := m.p.nbd.client()
	defer c.Close()
	for i := range m.blocks {
		b := &m.blocks[i]
		r, err := c.Do(0, nbdRead, uint64(i)*4096, 4096, nil)
		if err != nil || r.Error != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		if v := r.Data[0]; !bytes.Equal(r.Data, filled(v)) || v != b.sure && !b.maybe[v] {
			t.Fatalf("block %d has %d; it had %d, and of later writes %v were possible", i, v, b.sure, b.maybe)
		}
		b.sure, b.maybe = r.Data[0], map[byte]bool{}
	}
}

// settle ends a run: what the blocks have is what they keep.
func (m *goneModel) settle(t *testing.T) {
	m.answers(t)
	for _, c := range m.clients {
		c.c.Close()
	}
	m.clients = nil
	m.look(t)
}
