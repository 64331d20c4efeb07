package directory

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
	election "github.com/ironwarp/ironwarp/fabric/manager"
)

// management is what managers talk to on a host: its agent and, where it is a manager itself, its part in the election.
type management struct {
	d      *Directory
	plan   *Plan
	wake   chan struct{} // capacity 1: something may be due earlier
	config agent.Config  // of which the agent is made, but for its keys and what was set

	mu     sync.Mutex // guards the fields below it
	agent  *agent.Agent
	elect  *election.Manager // nil: this host is no manager
	master bool              // it was the master when work was called last
}

// newManagement makes the host's agent, if the plan has one. It fails as agent.New, agent.LoadSaved and election.New do.
func newManagement(d *Directory, plan *Plan, k *keeper) (*management, error) {
	g := &management{d: d, plan: plan, wake: make(chan struct{}, 1)}
	if k == nil && !plan.Agent {
		return g, nil
	}
	s := plan.Settings
	c := agent.Config{
		GUID: plan.Self.GUID, GIDPrefix: mad.LinkLocalPrefix, Name: plan.Name, GUIDs: d.cfg.VPorts(), PKeys: plan.PKeys, ReadOnly: !plan.Agent,
		Event: d.agentEvent,
	}
	var err error
	var saved *agent.Saved
	if plan.Agent {
		if saved, err = agent.LoadSaved(g.savedFile()); err != nil {
			return nil, err
		}
	}
	if k != nil {
		var others []election.Peer
		for _, m := range plan.Managers {
			if m.Peer != "" {
				others = append(others, election.Peer{Name: m.Peer, GUID: m.GUID})
			}
		}
		g.elect, err = election.New(election.Config{
			GUID: plan.Self.GUID, Options: s.Options, Keys: s.Keys, Managers: others, PortKey: k.portKey,
			Event: func(e election.Event) { d.electionEvent(e) },
		})
		if err != nil {
			return nil, err
		}
		c.SM = g.elect
	}
	g.config = c
	g.agent, err = g.newAgent(s, saved)
	return g, err
}

// newAgent makes the host's agent by settings and by what managers have set. It fails as agent.New does.
func (g *management) newAgent(s *conf.Config, saved *agent.Saved) (*agent.Agent, error) {
	c := g.config
	c.Keys, c.Saved = agent.Configured(s, g.plan.Self.GUID), saved
	return agent.New(c)
}

// renew applies other settings than before. What managers have set stays unless the settings have other key fields now, as after a restart. It
// fails as agent.New and election.Manager.SetOptions do.
func (g *management) renew(before, s *conf.Config) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.elect != nil {
		if err := g.elect.SetOptions(s.Options); err != nil {
			return err
		}
		g.elect.SetKeys(s.Keys)
	}
	own := g.plan.Self.GUID
	if g.agent == nil || agent.Configured(before, own) == agent.Configured(s, own) {
		return nil
	}
	var saved *agent.Saved
	if g.plan.Agent {
		saved = g.agent.Saved()
	}
	a, err := g.newAgent(s, saved)
	if err == nil {
		g.agent = a
		g.saveLocked()
	}
	return err
}

// savedFile has what managers have set.
func (g *management) savedFile() string { return filepath.Join(g.plan.StateDir, "fabric-agent.json") }

// run does what is due until ctx ends.
func (g *management) run(ctx context.Context) {
	for {
		wait := g.work(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		case <-time.After(wait):
		}
	}
}

// work does what is due, and returns when it has to be called again.
func (g *management) work(now time.Time) time.Duration {
	g.mu.Lock()
	var traps []mad.SMP
	var out []election.Outgoing
	next := now.Add(time.Hour)
	if g.agent != nil {
		var changed bool
		if traps, changed = g.agent.Tick(now); changed {
			g.saveLocked()
		}
		if at, due := g.agent.Next(); due && at.Before(next) {
			next = at
		}
	}
	if g.elect != nil {
		out = g.elect.Tick(now)
		if at := g.elect.Next(); at.Before(next) {
			next = at
		}
	}
	was := g.master
	g.master = g.elect != nil && g.elect.State() == mad.SMMaster
	begins := g.master && !was
	g.mu.Unlock()
	m, k := g.d.roles()
	if m != nil {
		m.sendTraps(traps)
		m.sendToManagers(out)
	}
	if k != nil && begins { // hosts may have come before
		k.look()
	}
	return max(next.Sub(now), leastPause)
}

func (g *management) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// saveLocked writes down what managers have set, and reports whether it could. What can't be written is logged.
func (g *management) saveLocked() bool {
	if !g.plan.Agent {
		return true
	}
	err := g.agent.Saved().Write(g.savedFile())
	if err != nil {
		g.d.cfg.Log.Error("fabric: what managers set can't be kept, and is not taken", "file", g.savedFile(), "error", err)
	}
	return err == nil
}

// handle takes a request of subnet management; ok: it has an answer.
func (g *management) handle(from agent.Requester, packet *mad.Packet) (answer mad.MAD, ok bool) {
	smp, err := mad.ParseSMP(&packet.MAD)
	if err != nil {
		return answer, false
	}
	g.mu.Lock()
	if g.agent == nil {
		g.mu.Unlock()
		return answer, false
	}
	var before *agent.Saved
	if smp.Method == mad.MethodSet {
		before = g.agent.Saved()
	}
	r := g.agent.Handle(time.Now(), from, &smp)
	if r.Changed && !g.saveLocked() && before != nil && r.Answer != nil {
		// After a restart the port would have what it had before, and its manager believe what it has set.
		g.agent.Undo(before)
		busy := smp.Answer(mad.StatusBusy)
		r = agent.Result{Answer: &busy}
	}
	g.mu.Unlock()
	g.poke()
	if r.Drain != nil {
		g.d.cfg.Drain(*r.Drain)
	}
	if r.PKeys != nil {
		g.d.cfg.PKeys(r.PKeys)
	}
	if r.Answer == nil {
		return answer, false
	}
	return r.Answer.MAD(), true
}

// answered takes another manager's answer to a question of the election.
func (g *management) answered(from agent.Requester, b *mad.MAD) {
	smp, err := mad.ParseSMP(b)
	if err != nil {
		return
	}
	g.mu.Lock()
	if g.elect == nil {
		g.mu.Unlock()
		return
	}
	out := g.elect.Receive(from, &smp)
	g.mu.Unlock()
	if m, _ := g.d.roles(); m != nil {
		m.sendToManagers(out)
	}
	g.poke()
}

// trap takes the trap of a host's agent; ok: it has an answer.
func (g *management) trap(from agent.Requester, smp *mad.SMP) (answer mad.MAD, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.elect.Trap(from, smp); r != nil {
		return r.MAD(), true
	}
	return answer, false
}

// isMaster reports whether this host's directory is the fabric's.
func (g *management) isMaster() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.elect != nil && g.elect.State() == mad.SMMaster
}

// drained reports whether a manager has drained the host.
func (g *management) drained() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.agent != nil && g.agent.Drained()
}

// keyed reports whether managers need a key for the host's agent.
func (g *management) keyed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.agent != nil && g.agent.Keys().MKey != 0
}

// partitions are the P_Keys that managers have left to the host; all: they have taken none.
func (g *management) partitions() (keys []uint16, all bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.agent == nil || !g.plan.Agent {
		return nil, true
	}
	return g.agent.PKeys(), false
}

// insecure lists what weakens the agent's protection.
func (g *management) insecure() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.agent == nil || !g.plan.Agent {
		return nil
	}
	return g.agent.Insecure()
}
