package ibsimnet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/manager"
	"github.com/ironwarp/ironwarp/fabric/sa"
)

// theMKey is the M_Key of the hosts' agents.
const theMKey mad.Key = 0x7777777777777777

// fabric is IronWarp's directory and agents behind a Server: the hosts manager, client and other, of which the first is a
// manager by its identity.
type fabric struct {
	*own
	socket  string
	network *Server

	mu     sync.Mutex              // guards the fields below it, and own
	agents map[string]*agent.Agent // by host
	silent int                     // requests that were not answered
}

// startFabric starts it, until the test ends. keys are those of the agents, changes
// those of the directory's options.
func startFabric(t *testing.T, keys agent.KeyFields, changes ...func(*sa.Options)) *fabric {
	t.Helper()
	f := &fabric{own: newOwn(t, changes...), socket: socket(t), agents: map[string]*agent.Agent{}}
	options := conf.Default().Options
	options.SMPriority = 7
	master, err := manager.New(manager.Config{GUID: f.guids["manager"], Options: options})
	if err != nil {
		t.Fatal(err)
	}
	for now := f.now; master.State() != mad.SMMaster; now = master.Next() {
		master.Tick(now)
	}
	var hosts []Host
	for _, name := range []string{"manager", "client", "other"} {
		c := agent.Config{GUID: f.guids[name], LID: f.lids[name], GIDPrefix: mad.LinkLocalPrefix, Name: name, PKeys: []uint16{0xffff, 0x8123}, Keys: keys}
		if name == "manager" {
			c.SM = master
		}
		a, err := agent.New(c)
		if err != nil {
			t.Fatal(err)
		}
		a.SetMaster(f.lids["manager"])
		f.agents[name] = a
		hosts = append(hosts, Host{Name: name, GUID: f.guids[name], LID: f.lids[name], PortInfo: mad.PortInfo{
			GIDPrefix: mad.LinkLocalPrefix, LID: f.lids[name], MasterSMLID: f.lids["manager"], LocalPort: 1, State: mad.PortActive, PhysicalState: mad.PortLinkUp,
		}})
	}
	if f.network, err = Listen(f.socket, hosts, f.handle); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.network.Close() })
	return f
}

// handle is the network: it gives the directory and the agents what a client sends.
func (f *fabric) handle(from Host, to mad.LID, m mad.MAD) (answers []Answer, reached bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() {
		if len(answers) == 0 {
			f.silent++
		}
	}()
	switch m.Class() {
	case mad.ClassSubnAdm:
		if to != f.lids["manager"] {
			return nil, false
		}
		return f.toHostsLocked(f.server.Handle(f.now, sa.Requester{GUID: from.GUID}, mad.Packet{MAD: m})), true
	case mad.ClassSubn, mad.ClassSubnDirected:
		for name, lid := range f.lids {
			if lid != to {
				continue
			}
			smp, err := mad.ParseSMP(&m)
			if err != nil {
				return nil, false
			}
			r := f.agents[name].Handle(f.now, agent.Requester{Name: from.Name, GUID: from.GUID, LID: from.LID, Manager: from.Name == "manager"}, &smp)
			if r.Answer != nil {
				answers = append(answers, Answer{To: from.LID, MAD: r.Answer.MAD()})
			}
			return answers, true
		}
	}
	return nil, false
}

// toHostsLocked addresses what the directory sends.
func (f *fabric) toHostsLocked(out []sa.Outgoing) (answers []Answer) {
	for _, o := range out {
		for name, guid := range f.guids {
			if guid == o.To {
				answers = append(answers, Answer{To: f.lids[name], MAD: o.Packet.MAD})
			}
		}
	}
	return answers
}

// come has a host come up, and delivers what the directory reports of it.
func (f *fabric) come(t *testing.T, name string, guid mad.GUID) {
	t.Helper()
	f.mu.Lock()
	_, out, err := f.server.PortUp(f.now, sa.Port{GUID: guid, Name: name})
	reports := f.toHostsLocked(out)
	f.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reports {
		f.network.Deliver(r)
	}
}

// patience is how long programs wait for an answer that they have to get, as an option in milliseconds, and impatience how long for one
// that nobody may give. They ask three times.
var patience, impatience = []string{"-t", "20000"}, []string{"-t", "300"}

// run runs a program at a host.
func (f *fabric) run(t *testing.T, host string, preload []string, name string, args ...string) (string, error) {
	t.Helper()
	environment, err := Environment(f.socket, host, preload...)
	require(t, err)
	if args[0] != "-t" {
		args = append(slices.Clone(patience), args...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second) // above three times patience
	defer cancel()
	out, err := Run(ctx, t.TempDir(), environment, name, args...)
	if err != nil {
		err = fmt.Errorf("at %s: %w", host, err)
	}
	return out, err
}
