package ibsimnet

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/manager"
)

const theSMKey mad.Key = 0x2222222222222222

// command is a Set of SMInfo by another manager, and what a master answers.
type command struct {
	name     string
	modifier uint32
	state    mad.SMState // the sender's
	obeyed   bool
}

// commands are sent one after the other; the last is obeyed.
var commands = []command{
	{"acknowledgement of a handover that nobody asked for", mad.SMAcknowledge, mad.SMStandby, false},
	{"acknowledgement by a master", mad.SMAcknowledge, mad.SMMaster, false},
	{"disabling a master", mad.SMDisable, mad.SMMaster, false},
	{"sending a master to standby", mad.SMToStandby, mad.SMMaster, false},
	{"sending a master to discovery", mad.SMDiscover, mad.SMMaster, false},
	{"unknown modifier", 9, mad.SMMaster, false},
	{"modifier 0", 0, mad.SMMaster, false},
	{"handover by who is in standby", mad.SMHandover, mad.SMStandby, false},
	{"handover by who is discovering", mad.SMHandover, mad.SMDiscovering, false},
	{"handover by a master", mad.SMHandover, mad.SMMaster, true},
}

// smp returns a request about SMInfo by a manager with this GUID.
func (c command) smp(guid mad.GUID) mad.SMP {
	s := mad.SMP{
		Header: mad.Header{Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: mad.MethodSet, Attribute: mad.AttrSMInfo, Modifier: c.modifier},
		MKey:   theMKey,
	}
	copy(s.Data[:], mad.SMInfo{GUID: guid, SMKey: theSMKey, Priority: 3, State: c.state}.Append(nil))
	return s
}

// testCommands has opensm obey or refuse another manager.
func testCommands(t *testing.T) {
	t.Attr("row", "opensm as the master: what it takes of another manager, and what not")
	name := startNetwork(t, "manager", "rival")
	_, log := startOpenSM(t, name, "manager", "sm_key 0x2222222222222222\n")
	until(t, "opensm's subnet is up", func() bool { return logged(log, "SUBNET UP") })
	c := client(t, name, "rival")
	own, err := c.PortInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	question := command{}.smp(0)
	question.Method = mad.MethodGet
	for _, x := range commands {
		request := x.smp(0x100003)
		answer, _ := ask(t, c, own.MasterSMLID, 0, request.MAD(), question.MAD())
		if answer == nil {
			t.Errorf("%s: silence", x.name)
			continue
		}
		checkCommand(t, x, answer, mad.StatusDenied) // it means InvalidField, 7 in those bits of the status, and has it where the class's are
	}
}

// checkCommand compares the answer to a command with what is wanted; refusal is the status of one that is not obeyed.
func checkCommand(t *testing.T, x command, answer *mad.MAD, refusal mad.Status) {
	t.Helper()
	want := refusal
	if x.obeyed {
		want = mad.StatusOK
	}
	smp, err := mad.ParseSMP(answer)
	if err != nil {
		t.Fatal(err)
	}
	info, err := mad.ParseSMInfo(smp.Data[:mad.SMInfoLen])
	if err != nil {
		t.Fatal(err)
	}
	if smp.Method != mad.MethodGetResp || smp.Status != want || info.State != mad.SMMaster || info.GUID != 0x100001 {
		t.Errorf("%s: %v %v, %+v, want %v by the master", x.name, smp.Method, smp.Status, info, want)
	}
}

// TestCommands sends our manager, as a master with the same keys, what testCommands sends opensm.
func TestCommands(t *testing.T) {
	options := conf.Default().Options
	rival := manager.Peer{Name: "rival", GUID: 0x100003, LID: 3}
	m, err := manager.New(manager.Config{GUID: 0x100001, Options: options, Keys: conf.NewKeys(theMKey, theSMKey, 0), Managers: []manager.Peer{rival}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1e9, 0)
	for ; m.State() != mad.SMMaster; now = m.Next() {
		m.Tick(now)
	}
	a, err := agent.New(agent.Config{GUID: 0x100001, LID: 1, Keys: agent.KeyFields{MKey: theMKey, Protect: 1}, SM: m})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range commands {
		request := x.smp(rival.GUID)
		r := a.Handle(now, agent.Requester{Name: rival.Name, GUID: rival.GUID, LID: rival.LID, Manager: true}, &request)
		if r.Answer == nil {
			t.Errorf("%s: silence", x.name)
			continue
		}
		answer := r.Answer.MAD()
		checkCommand(t, x, &answer, mad.StatusInvalidField)
	}
}
