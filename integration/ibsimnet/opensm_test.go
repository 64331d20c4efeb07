package ibsimnet

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// foreign is a fabric of ibsim's with opensm as its directory.
type foreign struct {
	clients map[string]*Client
	lids    map[string]mad.LID
	gids    map[string]mad.GID
}

func (f *foreign) gid(host string) mad.GID { return f.gids[host] }
func (f *foreign) lid(host string) mad.LID { return f.lids[host] }

func (f *foreign) ask(t testing.TB, host string, request mad.SA) (mad.Status, []byte, bool) {
	t.Helper()
	marker := mad.SA{Header: mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: mad.MethodGet, Attribute: mad.AttrClassPortInfo}}
	answer, length := ask(t, f.clients[host], f.lids["manager"], 1, request.MAD(), marker.MAD())
	if answer == nil {
		return 0, nil, false
	}
	sa, err := mad.ParseSA(answer)
	if err != nil {
		t.Fatal(err)
	}
	if method, _ := request.Method.Answer(); sa.Method != method || sa.Attribute != request.Attribute {
		t.Errorf("%v of %v answers %v of %v", sa.Method, sa.Attribute, request.Method, request.Attribute)
	}
	if sa.Key != 0 {
		t.Errorf("the answer to %v has an SA_Key", request.Method)
	}
	return sa.Status, sa.Data[:max(0, length-(mad.MADLen-mad.SADataLen))], true
}

// startForeign starts a fabric with opensm at manager.
func startForeign(t *testing.T, options string) (f *foreign, log string) {
	name := startNetwork(t, "manager", "client", "other")
	_, log = startOpenSM(t, name, "manager", options)
	until(t, "opensm's subnet is up", func() bool { return logged(log, "SUBNET UP") })
	f = &foreign{clients: map[string]*Client{}, lids: map[string]mad.LID{}, gids: map[string]mad.GID{}}
	for _, host := range []string{"manager", "client", "other"} {
		c := client(t, name, host)
		info, err := c.PortInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.clients[host], f.lids[host] = c, info.LID
	}
	for host, lid := range f.lids {
		request := mad.SA{
			Header:        mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: mad.MethodGet, Attribute: mad.AttrNodeRecord},
			ComponentMask: mad.NodeMaskLID,
		}
		copy(request.Data[:], mad.NodeRecord{LID: lid}.Append(nil))
		_, data, answered := f.ask(t, "client", request)
		if !answered || len(data) < mad.NodeRecordLen {
			t.Fatalf("opensm knows no node at LID %d", lid)
		}
		r, err := mad.ParseNodeRecord(data[:mad.NodeRecordLen])
		if err != nil {
			t.Fatal(err)
		}
		if got, err := r.Description.Text(); err != nil || got != host {
			t.Errorf("node %q at the LID of %q, %v", got, host, err)
		}
		f.gids[host] = mad.MakeGID(mad.LinkLocalPrefix, r.NodeInfo.PortGUID)
	}
	return f, log
}

// TestOpenSM proves on opensm, a subnet manager of others, what those without the enhanced trust model do.
func TestOpenSM(t *testing.T) {
	t.Run("base rules", testBaseRules)
	t.Run("rivals", testRivals)
	t.Run("commands", testCommands)
}

// testBaseRules asks opensm by the base rules: that they are what a subnet administrator without the enhanced trust model does.
func testBaseRules(t *testing.T) {
	t.Attr("row", "opensm answers by the base rules: SA_Keys, ServiceKeys, security traps, services, groups, paths, GUIDs")
	f, log := startForeign(t, "sa_key 0x1111111111111111\nsm_key 0x2222222222222222\n")
	tell(t, f, func(r rule) reply { return r.opensm })
	if !logged(log, "ERR 1A04") || !logged(log, "0x3333333333333333") {
		t.Error("opensm does not report the wrong SA_Key")
	}
}

// testRivals starts two managers with different SM_Keys: each reports the other in the words of NVIDIA's manual, shows the
// other's key and not its own, and both are masters.
func testRivals(t *testing.T) {
	t.Attr("row", "two opensm with different SM_Keys report each other and are both masters")
	name := startNetwork(t, "manager", "rival")
	keys := map[string]string{"manager": "0x2222222222222222", "rival": "0x4444444444444444"}
	logs := map[string]string{}
	managers := map[string]*Process{}
	for _, host := range []string{"manager", "rival"} {
		managers[host], logs[host] = startOpenSM(t, name, host, "sweep_on_trap FALSE\nsm_key "+keys[host]+"\n")
		until(t, host+"'s subnet is up", func() bool { return logged(logs[host], "SUBNET UP") })
	}
	// Light sweeps do not look for managers, and a manager that is sweeping forgets that it was asked to. It does not sweep by itself when
	// the second begins: what it then sends is lost, and with libumad2sim it would wait for an answer forever.
	var asked time.Time
	until(t, "the first manager reports the second", func() bool {
		if time.Since(asked) > time.Second {
			managers["manager"].Sweep()
			asked = time.Now()
		}
		return logged(logs["manager"], "Found remote SM")
	})
	for host, other := range map[string]string{"manager": "rival", "rival": "manager"} {
		for _, words := range []string{
			"ERR 2F18: Got SM (0,1",
			") with sm_key " + keys[other] + " that doesn't match our local sm_key. Ignoring SMInfo",
			"Found remote SM (0,1",
			") with non-matching sm_key",
			"Entering MASTER state",
		} {
			until(t, host+" logs "+words, func() bool { return logged(logs[host], words) })
		}
		for _, words := range []string{keys[host], "Entering STANDBY state"} {
			if logged(logs[host], words) {
				t.Errorf("%s logs %s", host, words)
			}
		}
	}
}
