package mad

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// question is a MAD of random bytes about which tshark is asked, and what it has to find: its fields, by their names
// without "infiniband.", with our values.
type question struct {
	name string
	make func(random []byte) (MAD, map[string]any)
}

// inSA puts an attribute in an SA MAD, and inSMP in an SMP.
func inSA(a Attribute, record []byte) MAD {
	sa := SA{Header: Header{Class: ClassSubnAdm, ClassVersion: SAClassVersion, Method: MethodGetResp, Attribute: a}}
	copy(sa.Data[:], record)
	return sa.MAD()
}

func inSMP(a Attribute, attribute []byte) MAD {
	smp := SMP{Header: Header{Class: ClassSubn, ClassVersion: SMPClassVersion, Method: MethodGetResp, Attribute: a}}
	copy(smp.Data[:], attribute)
	return smp.MAD()
}

// parsed is what one of our parsers makes of n of the random bytes, and those bytes.
func parsed[T any](random []byte, n int, parse func([]byte) (T, error)) (T, []byte) {
	v, err := parse(random[:n])
	if err != nil {
		panic(err) // the length is right
	}
	return v, random[:n]
}

// notice makes a generic notice with the random bytes as details.
func notice(random []byte, trap uint16) Notice {
	n := Notice{Generic: true, Type: NoticeSecurity, ProducerType: uint32(NodeCA), TrapNumber: trap, IssuerLID: 17}
	copy(n.Data[:], random)
	return n
}

var questions = []question{
	{"SA header", func(r []byte) (MAD, map[string]any) {
		m := MAD(r[:MADLen])
		m[0], m[1], m[17] = BaseVersion, byte(ClassSubnAdm), byte(AttrPathRecord)
		m[24], m[25] = RMPPVersion, byte(RMPPData)
		m[26] &= 0xf7 // tshark takes RRespTime's lowest bit for a flag
		sa, _ := ParseSA(&m)
		return m, map[string]any{
			"mad.mgmtclass": sa.Class, "mad.classversion": sa.ClassVersion, "mad.method": sa.Method, "mad.status": sa.Status,
			"mad.classspecific": sa.ClassSpecific, "mad.transactionid": sa.TransactionID, "mad.attributeid": sa.Attribute, "mad.attributemodifier": sa.Modifier,
			"rmpp.rmpptype": sa.RMPP.Type, "rmpp.rmppflags": sa.RMPP.Flags, "rmpp.rmppstatus": sa.RMPP.Status, "rmpp.segmentnumber": sa.RMPP.Segment,
			"rmpp.payloadlength": sa.RMPP.Length, "sa.smkey": uint64(sa.Key), "sa.attributeoffset": sa.AttributeOffset, "sa.componentmask": sa.ComponentMask,
		}
	}},
	{"SMP", func(r []byte) (MAD, map[string]any) {
		m := MAD(r[:MADLen])
		m[0], m[1] = BaseVersion, byte(ClassSubn)
		smp, _ := ParseSMP(&m)
		return m, map[string]any{"smplid.mkey": uint64(smp.MKey), "smplid.smpdata": smp.Data[:], "mad.status": smp.Status, "mad.attributemodifier": smp.Modifier}
	}},
	{"directed route SMP", func(r []byte) (MAD, map[string]any) {
		m := MAD(r[:MADLen])
		m[0], m[1] = BaseVersion, byte(ClassSubnDirected)
		smp, _ := ParseSMP(&m)
		return m, map[string]any{
			"smplid.mkey": uint64(smp.MKey), "smpdirected.drslid": smp.SLID, "smpdirected.drdlid": smp.DLID, "smpdirected.hoppointer": smp.HopPointer(),
			"smpdirected.hopcount": smp.HopCount(), "smpdirected.smpstatus": smp.Status, "smpdirected.initialpath": smp.InitialPath[:],
			"smpdirected.returnpath": smp.ReturnPath[:],
		}
	}},
	{"ServiceRecord", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, ServiceRecordLen, ParseServiceRecord)
		return inSA(AttrServiceRecord, b), map[string]any{
			"linkrecord.serviceid": v.ID, "linkrecord.servicegid": v.GID, "linkrecord.servicep_key": v.PKey, "linkrecord.servicelease": v.Lease,
			"linkrecord.servicekey": v.Key[:], "linkrecord.servicename": v.Name[:],
			"linkrecord.servicedata": b[112:],
		}
	}},
	{"PathRecord", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, PathRecordLen, ParsePathRecord)
		return inSA(AttrPathRecord, b), map[string]any{
			"pathrecord.dgid": v.DGID, "pathrecord.sgid": v.SGID, "pathrecord.dlid": v.DLID, "pathrecord.slid": v.SLID, "pathrecord.rawtraffic": flagOf(v.RawTraffic),
			"pathrecord.flowlabel": v.FlowLabel, "pathrecord.hoplimit": v.HopLimit, "pathrecord.tclass": v.TClass, "pathrecord.reversible": flagOf(v.Reversible),
			"pathrecord.numbpath": v.NumbPath, "pathrecord.p_key": v.PKey, "pathrecord.sl": v.SL, "pathrecord.mtuselector": v.MTUSelector, "pathrecord.mtu": v.MTU,
			"pathrecord.rateselector": v.RateSelector, "pathrecord.rate": v.Rate, "pathrecord.packetlifetimeselector": v.LifeTimeSelector,
			"pathrecord.packetlifetime": v.LifeTime, "pathrecord.preference": v.Preference,
		}
	}},
	{"MCMemberRecord", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, MCMemberRecordLen, ParseMCMemberRecord)
		return inSA(AttrMCMemberRecord, b), map[string]any{
			"mcmemberrecord.mgid": v.MGID, "mcmemberrecord.portgid": v.PortGID, "mcmemberrecord.q_key": v.QKey, "mcmemberrecord.mlid": v.MLID,
			"mcmemberrecord.mtuselector": v.MTUSelector, "mcmemberrecord.mtu": v.MTU, "mcmemberrecord.tclass": v.TClass, "mcmemberrecord.p_key": v.PKey,
			"mcmemberrecord.rateselector": v.RateSelector, "mcmemberrecord.rate": v.Rate, "mcmemberrecord.packetlifetimeselector": v.LifeTimeSelector,
			"mcmemberrecord.packetlifetime": v.LifeTime, "mcmemberrecord.sl": v.SL, "mcmemberrecord.flowlabel": v.FlowLabel, "mcmemberrecord.hoplimit": v.HopLimit,
			"mcmemberrecord.scope": v.Scope, "mcmemberrecord.joinstate": v.JoinState, "mcmemberrecord.proxyjoin": flagOf(v.ProxyJoin),
		}
	}},
	{"GUIDInfoRecord", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, GUIDInfoRecordLen, ParseGUIDInfoRecord)
		return inSA(AttrGUIDInfoRecord, b), map[string]any{"sa.lid": v.LID, "sa.blocknum_eightbit": v.BlockNum}
	}},
	{"InformInfo", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, InformInfoLen, ParseInformInfo)
		return inSA(AttrInformInfo, b), informFields(v)
	}},
	{"InformInfoRecord", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, InformInfoRecordLen, ParseInformInfoRecord)
		f := informFields(v.InformInfo)
		f["informinforecord.subscribergid"], f["informinforecord.enum"] = v.SubscriberGID, v.Enum
		return inSA(AttrInformInfoRecord, b), f
	}},
	{"ClassPortInfo", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, ClassPortInfoLen, ParseClassPortInfo)
		return inSA(AttrClassPortInfo, b), map[string]any{
			"classportinfo.baseversion": v.BaseVersion, "classportinfo.classversion": v.ClassVersion, "classportinfo.capabilitymask": v.CapabilityMask,
			"classportinfo.capabilitymask2": v.CapabilityMask2, "classportinfo.resptimevalue": v.RespTime, "classportinfo.redirectgid": v.RedirectGID,
			"classportinfo.redirecttc": v.RedirectTC, "classportinfo.redirectsl": v.RedirectSL, "classportinfo.redirectfl": v.RedirectFL,
			"classportinfo.redirectlid": v.RedirectLID, "classportinfo.redirectpkey": v.RedirectPKey, "classportinfo.redirectqp": v.RedirectQP,
			"classportinfo.redirectqkey": v.RedirectQKey, "classportinfo.trapgid": v.TrapGID, "classportinfo.traptc": v.TrapTC, "classportinfo.trapsl": v.TrapSL,
			"classportinfo.trapfl": v.TrapFL, "classportinfo.traplid": v.TrapLID, "classportinfo.trappkey": v.TrapPKey, "classportinfo.trapqp": v.TrapQP,
			"classportinfo.trapqkey": v.TrapQKey,
		}
	}},
	{"Notice", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, NoticeLen, ParseNotice)
		return inSA(AttrNotice, b), map[string]any{
			"notice.isgeneric": flagOf(v.Generic), "notice.type": v.Type, "notice.producertypevendorid": v.ProducerType, "notice.trapnumberdeviceid": v.TrapNumber,
			"notice.issuerlid": v.IssuerLID, "notice.noticetoggle": flagOf(v.Toggle), "notice.noticecount": v.Count, "notice.datadetails": v.Data[:],
		}
	}},
	{"trap 64", func(r []byte) (MAD, map[string]any) {
		n := notice(r, TrapGIDInService)
		d, _ := n.GID()
		return inSA(AttrNotice, n.Append(nil)), map[string]any{"trap.gidaddr": d.GID}
	}},
	{"trap 144", func(r []byte) (MAD, map[string]any) {
		n := notice(r, TrapCapabilityMask)
		d, _ := n.Capability()
		return inSA(AttrNotice, n.Append(nil)), map[string]any{
			"trap.lidaddr": d.LID, "trap.otherlocalchanges": flagOf(d.LocalChanges), "trap.capabilitymask": d.CapabilityMask, "trap.nodedescriptionchange": d.Changes & 1,
		}
	}},
	{"trap 256", func(r []byte) (MAD, map[string]any) {
		n := notice(r, TrapMKey)
		d, _ := n.MKey()
		return inSA(AttrNotice, n.Append(nil)), map[string]any{
			"trap.lidaddr": d.LID, "trap.drslid": d.DrSLID, "trap.method": d.Method, "trap.attributeid": d.Attribute, "trap.attributemodifier": d.Modifier,
			"trap.mkey": uint64(d.MKey), "trap.drnotice": flagOf(d.Directed), "trap.drpathtruncated": flagOf(d.PathTruncated), "trap.drhopcount": d.HopCount,
			"trap.drnoticereturnpath": d.ReturnPath[:],
		}
	}},
	{"trap 257", func(r []byte) (MAD, map[string]any) {
		n := notice(r, TrapPKey)
		d, _ := n.WrongKey()
		return inSA(AttrNotice, n.Append(nil)), map[string]any{
			"trap.lidaddr1": d.LID1, "trap.lidaddr2": d.LID2, "trap.key": d.Key, "trap.sl": d.SL, "trap.qp1": d.QP1, "trap.qp2": d.QP2, "trap.gidaddr1": d.GID1,
			"trap.gidaddr2": d.GID2,
		}
	}},
	{"NodeInfo", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, NodeInfoLen, ParseNodeInfo)
		return inSMP(AttrNodeInfo, b), nodeFields(v)
	}},
	{"NodeRecord", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, NodeRecordLen, ParseNodeRecord)
		f := nodeFields(v.NodeInfo)
		f["sa.lid"] = v.LID
		return inSA(AttrNodeRecord, b), f
	}},
	{"PortInfo", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, PortInfoLen, ParsePortInfo)
		return inSMP(AttrPortInfo, b), portFields(v)
	}},
	{"PortInfoRecord", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, PortInfoRecordLen, ParsePortInfoRecord)
		f := portFields(v.PortInfo)
		f["sa.endportlid"], f["sa.portnum"] = v.EndportLID, v.PortNum
		return inSA(AttrPortInfoRecord, b), f
	}},
	{"SMInfo", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, SMInfoLen, ParseSMInfo)
		return inSMP(AttrSMInfo, b), smFields(v)
	}},
	{"SMInfoRecord", func(r []byte) (MAD, map[string]any) {
		v, b := parsed(r, SMInfoRecordLen, ParseSMInfoRecord)
		f := smFields(v.SMInfo)
		f["sa.lid"] = v.LID
		return inSA(AttrSMInfoRecord, b), f
	}},
}

func informFields(v InformInfo) map[string]any {
	return map[string]any{
		"informinfo.gid": v.GID, "informinfo.lidrangebegin": v.LIDBegin, "informinfo.lidrangeend": v.LIDEnd, "informinfo.isgeneric": v.Generic,
		"informinfo.subscribe": v.Subscribe, "informinfo.type": v.Type, "informinfo.trapnumberdeviceid": v.TrapNumber, "informinfo.qpn": v.QPN,
		"informinfo.resptimevalue": v.RespTime, "informinfo.producertypevendorid": v.ProducerType,
	}
}

func nodeFields(v NodeInfo) map[string]any {
	return map[string]any{
		"nodeinfo.baseversion": v.BaseVersion, "nodeinfo.classversion": v.ClassVersion, "nodeinfo.nodetype": v.Type, "nodeinfo.numports": v.Ports,
		"nodeinfo.systemimageguid": uint64(v.SystemImageGUID), "nodeinfo.nodeguid": uint64(v.NodeGUID), "nodeinfo.portguid": uint64(v.PortGUID),
		"nodeinfo.partitioncap": v.PartitionCap, "nodeinfo.deviceid": v.DeviceID, "nodeinfo.revision": v.Revision, "nodeinfo.localportnum": v.LocalPort,
		"nodeinfo.vendorid": v.VendorID,
	}
}

func smFields(v SMInfo) map[string]any {
	return map[string]any{
		"sminfo.guid": uint64(v.GUID), "sminfo.sm_key": uint64(v.SMKey), "sminfo.actcount": v.ActCount, "sminfo.priority": v.Priority,
		"sminfo.smstate": uint64(v.State),
	}
}

func portFields(v PortInfo) map[string]any {
	return map[string]any{
		"portinfo.m_key": uint64(v.MKey), "portinfo.guid": v.GIDPrefix, "portinfo.lid": v.LID, "portinfo.mastersmlid": v.MasterSMLID,
		"portinfo.capabilitymask": v.CapabilityMask, "portinfo.diagcode": v.DiagCode, "portinfo.m_keyleaseperiod": v.MKeyLeasePeriod,
		"portinfo.localportnum": v.LocalPort, "portinfo.linkwidthenabled": v.LinkWidthEnabled, "portinfo.linkwidthsupported": v.LinkWidthSupported,
		"portinfo.linkwidthactive": v.LinkWidthActive, "portinfo.linkspeedsupported": v.LinkSpeedSupported, "portinfo.portstate": v.State,
		"portinfo.portphysicalstate": v.PhysicalState, "portinfo.linkdowndefaultstate": v.LinkDownDefault, "portinfo.m_keyprotectbits": v.MKeyProtect,
		"portinfo.lmc": v.LMC, "portinfo.linkspeedactive": v.LinkSpeedActive, "portinfo.linkspeedenabled": v.LinkSpeedEnabled, "portinfo.neighbormtu": v.NeighborMTU,
		"portinfo.mastersmsl": v.MasterSMSL, "portinfo.vlcap": v.VLCap, "portinfo.inittype": v.InitType, "portinfo.vlhighlimit": v.VLHighLimit,
		"portinfo.vlarbitrationhighcap": v.VLArbHighCap, "portinfo.vlarbitrationlowcap": v.VLArbLowCap, "portinfo.inittypereply": v.InitTypeReply,
		"portinfo.mtucap": v.MTUCap, "portinfo.vlstallcount": v.VLStallCount, "portinfo.hoqlife": v.HOQLife, "portinfo.operationalvls": v.OperationalVLs,
		"portinfo.partitionenforcementinbound": flagOf(v.PartitionEnforceIn), "portinfo.partitionenforcementoutbound": flagOf(v.PartitionEnforceOut),
		"portinfo.filterrawinbound": flagOf(v.FilterRawIn), "portinfo.filterrawoutbound": flagOf(v.FilterRawOut), "portinfo.m_keyviolations": v.MKeyViolations,
		"portinfo.p_keyviolations": v.PKeyViolations, "portinfo.q_keyviolations": v.QKeyViolations, "portinfo.guidcap": v.GUIDCap,
		"portinfo.clientreregister": flagOf(v.ClientReregister), "portinfo.subnettimeout": v.SubnetTimeOut, "portinfo.resptimevalue": v.RespTime,
		"portinfo.localphyerrors": v.LocalPhyErrors, "portinfo.overrunerrors": v.OverrunErrors, "portinfo.maxcredithint": v.MaxCreditHint,
		"portinfo.linkroundtriplatency": v.LinkRoundTripLatency,
	}
}

func flagOf(on bool) uint8 {
	if on {
		return 1
	}
	return 0
}

// canonical writes a value of ours as [answer] writes tshark's.
func canonical(v any) string {
	switch v := v.(type) {
	case GID:
		return v.String()
	case []byte:
		return hex.EncodeToString(v)
	}
	return fmt.Sprintf("%d", v)
}

func answer(s string, ours any) string {
	switch ours.(type) {
	case GID:
		if a, err := netip.ParseAddr(s); err == nil {
			return a.String()
		}
	case []byte:
		return strings.NewReplacer(":", "", ",", "").Replace(s)
	default:
		switch s {
		case "True":
			return "1"
		case "False":
			return "0"
		}
		if n, err := strconv.ParseUint(s, 0, 64); err == nil {
			return strconv.FormatUint(n, 10)
		}
	}
	return s
}

// capture is a file of MADs on InfiniBand: LRH, GRH, BTH, DETH, MAD, ICRC, VCRC.
func capture(t *testing.T, grh GRH, mads []MAD) string {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = le.AppendUint16(b, 2)
	b = le.AppendUint16(b, 4)
	for _, v := range []uint32{0, 0, 1 << 16, 197} { // DLT_ERF
		b = le.AppendUint32(b, v)
	}
	for i := range mads {
		p := Packet{GRH: grh, MAD: mads[i]}
		body := p.Append(nil)
		const words = (8 + GRHLen + 12 + 8 + MADLen + 4) / 4
		f := []byte{0xf0, 3, 0, 2, 0, words, 0, 1} // VL 15, LNH: GRH, DLID 2, SLID 1
		f = append(f, body[:GRHLen]...)
		f = append(f, 0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, byte(i)) // UD SEND Only to QP 1
		f = append(f, 0x80, 1, 0, 0, 0, 0, 0, 1)                         // Q_Key, from QP 1
		f = append(f, body[GRHLen:]...)
		f = append(f, 0, 0, 0, 0, 0, 0)
		record := uint16(16 + len(f))
		f = append(binary.BigEndian.AppendUint16([]byte{0, 0, 0, 0, 0, 0, 0, 0, 21, 4, byte(record >> 8), byte(record), 0, 0}, uint16(len(f))), f...) // ERF's type INFINIBAND
		for _, v := range []uint32{uint32(i), 0, uint32(len(f)), uint32(len(f))} {
			b = le.AppendUint32(b, v)
		}
		b = append(b, f...)
	}
	file := filepath.Join(t.TempDir(), "mad.pcap")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestTshark compares what tshark finds in MADs of random bytes with what we find. It is asked once about all of them.
func TestTshark(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark, the oracle, is missing: apt install tshark")
	}
	const rounds = 25
	source := rand.NewChaCha8([32]byte{16})
	grh := GRH{TrafficClass: 0xa5, FlowLabel: 0x9abcd, HopLimit: 7, SGID: MakeGID(LinkLocalPrefix, 0x0123456789abcdef), DGID: MakeGID(1<<63, 42)}
	var mads []MAD
	var wanted []map[string]any // fields of each MAD, by name
	column := map[string]int{}  // of tshark's answer
	args := []string{"-n", "-T", "fields", "-E", "separator=|"}
	for _, q := range questions {
		for range rounds {
			var random [MADLen]byte
			source.Read(random[:])
			m, fields := q.make(random[:])
			fields["grh.sgid"], fields["grh.dgid"], fields["grh.tclass"], fields["grh.flowlabel"], fields["grh.hoplmt"] = grh.SGID, grh.DGID, grh.TrafficClass, grh.FlowLabel, grh.HopLimit
			mads, wanted = append(mads, m), append(wanted, fields)
			for name := range fields {
				if _, ok := column[name]; !ok {
					column[name] = len(column)
					args = append(args, "-e", "infiniband."+name)
				}
			}
		}
	}
	var stderr bytes.Buffer
	cmd := exec.Command("tshark", append(args, "-r", capture(t, grh, mads))...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(mads) {
		t.Fatalf("%d lines, want %d", len(lines), len(mads))
	}
	for i, line := range lines {
		values := strings.Split(line, "|")
		if len(values) != len(column) {
			t.Fatalf("%d values, want %d: %s", len(values), len(column), line)
		}
		for name, ours := range wanted[i] {
			value := values[column[name]]
			if got := answer(value, ours); got != canonical(ours) {
				t.Errorf("%s, MAD %d: %s: tshark says %q (%s), we %s", questions[i/rounds].name, i, name, value, got, canonical(ours))
			}
		}
	}
}
