package ibsimnet

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/sa"
)

// TestStockPrograms has InfiniBand's own programs ask our directory, manager and agents.
func TestStockPrograms(t *testing.T) {
	t.Run("one service", testOneService)
	t.Run("tables", testTables)
	t.Run("SA_Keys", testSAKeys)
	t.Run("enhanced trust model", testTrustModel)
	t.Run("subscriptions", testSubscriptions)
	t.Run("managers", testSMInfo)
	t.Run("agents", testAgents)
	t.Run("M_Keys", testMKeys)
}

// register registers n services of a host, and returns what is to be listed of them.
func (f *fabric) register(t *testing.T, host string, n int) map[string]string {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	services := map[string]string{}
	for i := range n {
		r := mad.ServiceRecord{ID: uint64(i + 1), GID: f.gid(host), PKey: 0xffff, Lease: mad.ServiceLeaseInfinite, Key: mad.ServiceKey{0xab, 0xcd}}
		r.Data64[1] = uint64(i) << 32
		name := fmt.Sprintf("disk %d", i)
		r.Name, _ = mad.MakeName(name) // it is short
		request := mad.SA{
			Header:        mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: mad.MethodSet, Attribute: mad.AttrServiceRecord},
			ComponentMask: serviceMask | mad.ServiceMaskData64,
		}
		copy(request.Data[:], r.Append(nil))
		if status, _, answered := f.ask(t, host, request); !answered || status != mad.StatusOK {
			t.Fatalf("service %d: %v", i, status)
		}
		services[fmt.Sprintf("%#016x", r.ID)] = fmt.Sprintf("%s at %v, %#016x", name, r.GID, r.Data64[1])
	}
	return services
}

// fields are the lines "name....value" of a program's output, cut where a record begins.
var fields = regexp.MustCompile(`(?m)^\s*([A-Za-z][\w. ]*?)[.:]{2,}[.]*(.*)$`)

// records returns the records that a program prints, which begin with the field first.
func records(out, first string) (list []map[string]string) {
	for _, m := range fields.FindAllStringSubmatch(out, -1) {
		if m[1] == first {
			list = append(list, map[string]string{})
		}
		if len(list) > 0 {
			list[len(list)-1][m[1]] = m[2]
		}
	}
	return list
}

// listed returns the services that saquery prints, as register does.
func listed(out string) map[string]string {
	services := map[string]string{}
	for _, r := range records(out, "ServiceID") {
		services[r["ServiceID"]] = fmt.Sprintf("%s at %s, %s", r["ServiceName"], r["ServiceGID"], r["ServiceData64.2"])
	}
	return services
}

// expect runs a program that has to print a record with these values, and returns what it prints.
func (f *fabric) expect(t *testing.T, host string, preload []string, want map[string]string, name string, args ...string) string {
	t.Helper()
	out, err := f.run(t, host, preload, name, args...)
	if err != nil {
		t.Errorf("%v", err)
		return out
	}
	got := map[string]string{}
	for _, m := range fields.FindAllStringSubmatch(out, -1) {
		got[m[1]] = m[2]
	}
	for field, value := range want {
		if got[field] != value {
			t.Errorf("%s %q at %s: %s is %q, want %q", name, args, host, field, got[field], value)
		}
	}
	return out
}

// silence runs a program to whose request nobody may answer.
func (f *fabric) silence(t *testing.T, host, name string, args ...string) {
	t.Helper()
	before := f.unanswered()
	out, err := f.run(t, host, nil, name, append(slices.Clone(impatience), args...)...)
	if err == nil || !strings.Contains(out, "timed out") {
		t.Errorf("%s %q at %s: %v, want a timeout: %s", name, args, host, err, out)
	}
	if f.unanswered() == before {
		t.Errorf("%s %q at %s: no request of its stayed without an answer", name, args, host)
	}
}

// testOneService lists a service with stock programs alone: libumad2sim passes on nearly all of its record.
func testOneService(t *testing.T) {
	t.Parallel()
	t.Attr("row", "saquery: a service, a path")
	f := startFabric(t, agent.KeyFields{})
	f.register(t, "client", 1)
	f.expect(t, "other", nil, map[string]string{
		"ServiceID": "0x0000000000000001", "ServiceGID": "fe80::10:3", "ServiceName": "disk 0", "ServiceLease": "0xFFFFFFFF", "ServiceP_Key": "0xFFFF",
		"ServiceKey": "0x00000000000000000000000000000000",
	}, "saquery", "-K", "-S")
	f.expect(t, "other", nil, map[string]string{"sgid": "fe80::10:3", "dgid": "fe80::10:5", "slid": "2", "dlid": "3", "pkey": "0xFFFF"}, "saquery", "-p", "--src-to-dst", "2:3")
}

// testTables lists what takes many segments.
func testTables(t *testing.T) {
	t.Parallel()
	t.Attr("row", "saquery, with a library that puts segments together: 3,000 services; nodes, ports and paths")
	f := startFabric(t, agent.KeyFields{})
	library, err := Segments(t.Context(), t.TempDir())
	require(t, err)
	want := f.register(t, "client", 3000)
	out, err := f.run(t, "other", []string{library}, "saquery", "-S")
	if err != nil {
		t.Fatal(err)
	}
	if got := listed(out); !maps.Equal(got, want) {
		t.Errorf("%d services are listed, want %d as they are registered", len(got), len(want))
		for id := range want {
			if got[id] != want[id] {
				t.Errorf("for example %s: %q, want %q", id, got[id], want[id])
				break
			}
		}
	}
	out, err = f.run(t, "other", []string{library}, "saquery", "-N")
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]string{}
	for _, r := range records(out, "lid") {
		nodes[r["NodeDescription"]] = r["lid"] + " " + r["port_guid"]
	}
	if want := map[string]string{"manager": "1 0x0000000000100001", "client": "2 0x0000000000100003", "other": "3 0x0000000000100005"}; !maps.Equal(nodes, want) {
		t.Errorf("nodes %v, want %v", nodes, want)
	}
	out, err = f.run(t, "other", []string{library}, "saquery", "-p")
	if err != nil {
		t.Fatal(err)
	}
	if paths := records(out, "service_id"); len(paths) != 9 {
		t.Errorf("%d paths of three hosts, want 9", len(paths))
	}
}

// testSAKeys asks with the right SA_Key, with none and with another one.
func testSAKeys(t *testing.T) {
	t.Parallel()
	t.Attr("row", "saquery --smkey: what the trusted are told; a wrong key is not answered")
	f := startFabric(t, agent.KeyFields{})
	f.register(t, "client", 1)
	f.expect(t, "other", nil, map[string]string{"ServiceKey": "0xabcd0000000000000000000000000000"}, "saquery", "-K", "--smkey", fmt.Sprintf("%#x", uint64(theSAKey)), "-S")
	f.silence(t, "other", "saquery", "--smkey", fmt.Sprintf("%#x", uint64(anotherKey)), "-S")
}

// testTrustModel asks a directory with the enhanced trust model: what is not in its set is answered for the SA_Key alone.
func testTrustModel(t *testing.T) {
	t.Parallel()
	t.Attr("row", "saquery and the enhanced trust model: silence for what the untrusted may not ask")
	f := startFabric(t, agent.KeyFields{}, func(o *sa.Options) { o.EnhancedTrustModel = true })
	f.register(t, "client", 1)
	key := fmt.Sprintf("%#x", uint64(theSAKey))
	pair := map[string]string{"slid": "2", "dlid": "3"}
	f.expect(t, "other", nil, pair, "saquery", "-p", "--src-to-dst", "2:3")
	f.expect(t, "other", nil, map[string]string{"Class version": "2"}, "saquery", "-c")
	for _, args := range [][]string{{"-S"}, {"-N"}, {"-s"}, {"-p", "--slid", "2"}, {"-I"}, {"SMIR"}} {
		f.silence(t, "other", "saquery", args...)
		if out, err := f.run(t, "other", nil, "saquery", append([]string{"--smkey", key}, args...)...); err != nil {
			t.Errorf("with the SA_Key: %v: %s", err, out)
		}
	}
	f.expect(t, "other", nil, map[string]string{"ServiceName": "disk 0"}, "saquery", "--smkey", key, "-S")
}

// testSubscriptions subscribes to hosts that come, and gets a report of one; saquery lists the subscription.
func testSubscriptions(t *testing.T) {
	t.Parallel()
	t.Attr("row", "saquery: a subscription, to which our directory has reported")
	f := startFabric(t, agent.KeyFields{})
	c := client(t, f.socket, "client")
	subscribe := mad.SA{Header: mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: mad.MethodSet, Attribute: mad.AttrInformInfo}}
	copy(subscribe.Data[:], mad.InformInfo{
		LIDBegin: mad.InformAllLIDs, Generic: 1, Subscribe: 1, Type: mad.InformAllTypes, TrapNumber: mad.TrapGIDInService, QPN: 1, ProducerType: mad.InformAllProducers,
	}.Append(nil))
	if _, err := c.Send(t.Context(), f.lids["manager"], 1, subscribe.MAD()); err != nil {
		t.Fatal(err)
	}
	if m, _, _, err := c.Receive(t.Context()); err != nil || m.Header().Status != mad.StatusOK || m.Header().Method != mad.MethodGetResp {
		t.Fatalf("%+v, %v", m.Header(), err)
	}
	f.come(t, "newcomer", 0x100007)
	m, _, _, err := c.Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	report, err := mad.ParseSA(&m)
	if err != nil {
		t.Fatal(err)
	}
	n, err := mad.ParseNotice(report.Data[:mad.NoticeLen])
	if err != nil {
		t.Fatal(err)
	}
	if who, err := n.GID(); report.Method != mad.MethodReport || n.TrapNumber != mad.TrapGIDInService || err != nil || who.GID != mad.MakeGID(mad.LinkLocalPrefix, 0x100007) {
		t.Errorf("%v of trap %d about %v, %v", report.Method, n.TrapNumber, who, err)
	}
	answer := report.Answer(mad.StatusOK)
	if _, err := c.Send(t.Context(), f.lids["manager"], 1, answer.MAD()); err != nil {
		t.Fatal(err)
	}
	library, err := Segments(t.Context(), t.TempDir())
	require(t, err)
	f.expect(t, "manager", []string{library}, map[string]string{"SubscriberGID": "fe80::10:3", "trap_num": "64"}, "saquery", "--smkey", fmt.Sprintf("%#x", uint64(theSAKey)), "-I")
}

// testSMInfo asks our manager who it is.
func testSMInfo(t *testing.T) {
	t.Parallel()
	t.Attr("row", "sminfo: the manager, its priority and state")
	f := startFabric(t, agent.KeyFields{})
	for _, host := range []string{"manager", "client"} {
		out, err := f.run(t, host, nil, "sminfo", patience...)
		if want := "sminfo: sm lid 1 sm guid 0x100001, activity count "; err != nil || !strings.Contains(out, want) || !strings.Contains(out, " priority 7 state 3 SMINFO_MASTER") {
			t.Errorf("at %s: %v, %s, want %s... priority 7 state 3 SMINFO_MASTER", host, err, out, want)
		}
	}
}

// testAgents asks the agents of hosts as a manager does, and as others do.
func testAgents(t *testing.T) {
	t.Parallel()
	t.Attr("row", "smpquery, ibaddr: hosts' agents answer a manager, and nobody else")
	f := startFabric(t, agent.KeyFields{})
	f.expect(t, "manager", nil, map[string]string{"NodeType": "Channel Adapter", "NumPorts": "1", "PortGuid": "0x0000000000100003", "LocalPort": "1"}, "smpquery", "nodeinfo", "2")
	f.expect(t, "manager", nil, map[string]string{"PortGuid": "0x0000000000100001"}, "smpquery", "-D", "nodeinfo", "0")
	f.expect(t, "manager", nil, map[string]string{"Node Description": "other"}, "smpquery", "nodedesc", "3")
	f.expect(t, "manager", nil, map[string]string{"Lid": "2", "SMLid": "1", "GidPrefix": "0xfe80000000000000", "LinkState": "Active", "PhysLinkState": "LinkUp"}, "smpquery", "portinfo", "2")
	if out, err := f.run(t, "manager", nil, "smpquery", "pkeys", "2"); err != nil || !strings.Contains(out, "0: 0xffff 0x8123 0x0000") {
		t.Errorf("%v, %s", err, out)
	}
	if out, err := f.run(t, "manager", nil, "smpquery", "guidinfo", "2"); err != nil || !strings.Contains(out, "0x0000000000100003") {
		t.Errorf("%v, %s", err, out)
	}
	if out, err := f.run(t, "manager", nil, "ibaddr", "2"); err != nil || !strings.Contains(out, "GID fe80::10:3 LID start 0x2 end 0x2") {
		t.Errorf("%v, %s", err, out)
	}
	for _, args := range [][]string{{"smpquery", "nodeinfo", "3"}, {"smpquery", "portinfo", "2"}, {"ibaddr", "3"}} {
		f.silence(t, "client", args[0], args[1:]...)
	}
	// A request to no port comes back at once: there the silence above is the agent's own.
	if out, err := f.run(t, "manager", nil, "smpquery", "nodeinfo", "77"); err == nil || strings.Contains(out, "timed out") {
		t.Errorf("a LID of nobody: %v, %s", err, out)
	}
}

// testMKeys reads a port's M_Key at each level of protection, with the key, without, and with another one.
func testMKeys(t *testing.T) {
	t.Parallel()
	t.Attr("row", "smpquery --m_key: what is shown at each level of protection")
	const zero = "0x0000000000000000"
	key := fmt.Sprintf("%#x", uint64(theMKey))
	for protect, without := range []string{key, zero, "", ""} { // "": no answer
		t.Run(fmt.Sprint("level ", protect), func(t *testing.T) {
			t.Parallel()
			f := startFabric(t, agent.KeyFields{MKey: theMKey, Protect: uint8(protect)})
			f.expect(t, "manager", nil, map[string]string{"Mkey": key, "ProtectBits": fmt.Sprint(protect)}, "smpquery", "-K", "--m_key", key, "portinfo", "2")
			for _, args := range [][]string{{"-K", "portinfo", "2"}, {"-K", "--m_key", "0x1234", "portinfo", "2"}} {
				if without == "" {
					f.silence(t, "manager", "smpquery", args...)
				} else {
					f.expect(t, "manager", nil, map[string]string{"Mkey": without}, "smpquery", args...)
				}
			}
			f.silence(t, "client", "smpquery", "-K", "--m_key", key, "portinfo", "2") // the right key, but no manager
		})
	}
}

// unanswered returns how many requests got no answer so far.
func (f *fabric) unanswered() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.silent
}
