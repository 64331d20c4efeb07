package manager

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// network is managers with links between them, and a clock.
type network struct {
	Fatal func(...any)
	draw  *rapid.T // nil: nothing is lost
	now   time.Time
	hosts []*managerHost
	cut   map[[2]int]bool
	loss  int // in 8
	queue []packet
	each  func() // after each step, unless nil
}

type managerHost struct {
	config Config
	m      *Manager
	hangs  bool // it does nothing; what it is sent is lost
}

type packet struct {
	from, to int
	at       time.Time
	smp      mad.SMP
}

const testInterval = 10 * time.Second

// answerTime is the most that a message is under way.
const answerTime = 200 * time.Millisecond

func guid(i int) mad.GUID { return mad.GUID(100 + i) }

func newNetwork(fatal func(...any), draw *rapid.T, priorities []uint8, keys []mad.Key, retries int) *network {
	n := &network{Fatal: fatal, draw: draw, now: time.Unix(1_000_000, 0), cut: map[[2]int]bool{}}
	for i := range priorities {
		c := Config{GUID: guid(i), Keys: conf.NewKeys(0, keys[i], 0)}
		c.Options.SMPriority, c.Options.SMInfoPollingTimeout, c.Options.PollingRetryNumber = priorities[i], testInterval, retries
		for j := range priorities {
			if j != i {
				c.Managers = append(c.Managers, Peer{Name: fmt.Sprint("host", j), GUID: guid(j), LID: mad.LID(j + 1)})
			}
		}
		h := &managerHost{config: c}
		n.hosts = append(n.hosts, h)
		n.restart(i)
	}
	return n
}

func (n *network) restart(i int) {
	h := n.hosts[i]
	var err error
	if h.m, err = New(h.config); err != nil {
		n.Fatal(err)
	}
	h.hangs = false
}

func (n *network) requester(i int) agent.Requester {
	return agent.Requester{Name: fmt.Sprint("host", i), GUID: guid(i), LID: mad.LID(i + 1), Manager: true}
}

func (n *network) send(from, to int, smp mad.SMP) {
	if n.loss > 0 && rapid.IntRange(0, 7).Draw(n.draw, "loss") < n.loss {
		return
	}
	delay := answerTime / 2
	if n.loss > 0 {
		delay = time.Duration(rapid.IntRange(0, int(answerTime/time.Millisecond)).Draw(n.draw, "delay")) * time.Millisecond
	}
	n.queue = append(n.queue, packet{from, to, n.now.Add(delay), smp})
}

func (n *network) sendAll(from int, out []Outgoing) {
	for _, o := range out {
		n.send(from, int(o.To-guid(0)), o.SMP)
	}
}

// run lets a time pass.
func (n *network) run(d time.Duration) {
	end := n.now.Add(d)
	for {
		// What is due next: a message or a tick.
		at, next := end, -1
		for i, p := range n.queue {
			if !p.at.After(at) && (next < 0 || p.at.Before(n.queue[next].at)) {
				at, next = p.at, i
			}
		}
		tick := -1
		for i, h := range n.hosts {
			if t := h.m.Next(); !h.hangs && t.Before(at) {
				at, tick = t, i
			}
		}
		if at.After(n.now) {
			n.now = at
		}
		switch {
		case tick >= 0:
			n.sendAll(tick, n.hosts[tick].m.Tick(n.now))
		case next >= 0:
			p := n.queue[next]
			n.queue = slices.Delete(n.queue, next, next+1)
			n.deliver(p)
		default:
			return
		}
		if n.each != nil {
			n.each()
		}
	}
}

func (n *network) deliver(p packet) {
	to := n.hosts[p.to]
	if to.hangs || n.cut[[2]int{p.from, p.to}] {
		return
	}
	smp := p.smp
	if smp.Method.Response() {
		n.sendAll(p.to, to.m.Receive(n.requester(p.from), &smp))
		return
	}
	if a := to.m.ServeSMInfo(n.requester(p.from), &smp, true); a != nil {
		n.send(p.to, p.from, *a)
	}
}

// settled reports what is not as it should be with managers that hear each other: of those with one key the
// highest is the master and the others stand by.
func (n *network) settled() error {
	best := map[mad.Key]int{}
	for i, h := range n.hosts {
		k := h.config.Keys.SM()
		b, ok := best[k]
		if p := n.hosts[max(b, 0)].config.Options.SMPriority; !ok || higher(h.config.Options.SMPriority, guid(i), p, guid(b)) {
			best[k] = i
		}
	}
	for i, h := range n.hosts {
		b := best[h.config.Keys.SM()]
		want := mad.SMStandby
		if b == i {
			want = mad.SMMaster
		}
		if master, ok := h.m.Master(); h.m.State() != want || !ok || master != guid(b) {
			return fmt.Errorf("host %d is %s and takes %s for the master, which is host %d", i, h.m.State(), master, b)
		}
	}
	return nil
}

// Whatever has happened to managers and links: when all hear each other again, the highest of those with one
// sm_key is the master, and no other, within five intervals, and stays it.
func TestOneMaster(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, 5).Draw(t, "managers")
		priorities, keys := make([]uint8, count), make([]mad.Key, count)
		for i := range count {
			priorities[i] = uint8(rapid.IntRange(0, 2).Draw(t, "priority"))
			keys[i] = rapid.SampledFrom([]mad.Key{7, 7, 7, 9}).Draw(t, "sm_key")
		}
		n := newNetwork(t.Fatal, t, priorities, keys, rapid.IntRange(0, 4).Draw(t, "retries"))
		n.loss = rapid.IntRange(0, 4).Draw(t, "of 8 lost")
		for range rapid.IntRange(0, 12).Draw(t, "steps") {
			i := rapid.IntRange(0, count-1).Draw(t, "host")
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				n.restart(i)
			case 1:
				n.hosts[i].hangs = !n.hosts[i].hangs
			case 2:
				j := rapid.IntRange(0, count-1).Draw(t, "other")
				one, both := [2]int{i, j}, rapid.Bool().Draw(t, "both ways")
				n.cut[one] = !n.cut[one]
				if both {
					n.cut[[2]int{j, i}] = n.cut[one]
				}
			case 3:
				clear(n.cut)
			}
			n.run(time.Duration(rapid.IntRange(0, 60000).Draw(t, "milliseconds")) * time.Millisecond)
		}
		clear(n.cut)
		n.loss = 0
		for _, h := range n.hosts {
			h.hangs = false
		}
		n.run(5 * testInterval)
		for range 30 {
			if err := n.settled(); err != nil {
				t.Fatal(err)
			}
			n.run(testInterval / 3)
		}
	})
}
