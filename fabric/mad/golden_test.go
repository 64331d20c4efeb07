package mad

import (
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

// golden is an answer of opensm 3.3.23 or ibsim 0.10 on a fabric of ibsim's, without the zeros at its end, and what it says.
type golden struct {
	name   string
	mad    string // in hex
	header Header
	data   Record
	offset uint16
	mask   Mask
}

const (
	goldenManager GUID = 0x100001
	goldenClient  GUID = 0x100003
	goldenOther   GUID = 0x100005
)

func goldenGID(g GUID) GID { return MakeGID(LinkLocalPrefix, g) }

func goldenName(s string) Name {
	n, err := MakeName(s)
	if err != nil {
		panic(err) // it is short
	}
	return n
}

func goldenGroup(port GID, join uint8) MCMemberRecord {
	return MCMemberRecord{
		MGID: GID{0xff, 0x15, 0xa0, 0x1b, 15: 7}, PortGID: port, QKey: 1, MLID: 0xc001, MTUSelector: SelectExactly, MTU: MTU2048, PKey: 0xffff,
		RateSelector: SelectExactly, Rate: 3, LifeTimeSelector: SelectExactly, Scope: 5, JoinState: join,
	}
}

func saHeader(m Method, a Attribute, transaction uint64) Header {
	return Header{Class: ClassSubnAdm, ClassVersion: SAClassVersion, Method: m, TransactionID: transaction, Attribute: a}
}

func smpHeader(a Attribute, transaction uint64) Header {
	return Header{Class: ClassSubn, ClassVersion: SMPClassVersion, Method: MethodGetResp, TransactionID: transaction, Attribute: a}
}

// goldenPort is a port of ibsim's: 4X, 2.5 to 10 Gb/s.
func goldenPort(lid LID, capabilities uint32) PortInfo {
	return PortInfo{
		GIDPrefix: LinkLocalPrefix, LID: lid, MasterSMLID: 1, CapabilityMask: capabilities, MKeyLeasePeriod: 0xff9, LocalPort: 1,
		LinkWidthEnabled: 2, LinkWidthSupported: 31, LinkWidthActive: 2, LinkSpeedSupported: 7, State: PortActive, PhysicalState: PortLinkUp, LinkDownDefault: 2,
		LinkSpeedActive: 1, LinkSpeedEnabled: 1, NeighborMTU: MTU2048, VLCap: 4, VLArbHighCap: 8, VLArbLowCap: 8, MTUCap: MTU2048, VLStallCount: 7, OperationalVLs: 4,
		GUIDCap: 32, SubnetTimeOut: 31, LinkSpeedExtActive: 3,
	}
}

var goldens = []golden{
	{"ServiceRecord", "0103028100000000 0003000000000007 0031000000000000 000000000000000000000000 0000000000000000 0016000000000000 00000040" +
		"0000000000000abc fe800000000000000000000000100003 ffff0000 000003e8 01020300000000000000000000000000 6469736b",
		saHeader(MethodGetResp, AttrServiceRecord, 0x3000000000007),
		ServiceRecord{ID: 0xabc, GID: goldenGID(goldenClient), PKey: 0xffff, Lease: 1000, Key: ServiceKey{1, 2, 3}, Name: goldenName("disk")}, 22, ServiceMaskName},
	{"InformInfo", "0103028100000000 0002000000000025 0003000000000000 000000000000000000000000 0000000000000000 0004000000000000 00000000" +
		"00000000000000000000000000000000 ffff0000 0000 01 01 ffff 0040 00000100 00ffffff",
		saHeader(MethodGetResp, AttrInformInfo, 0x2000000000025),
		InformInfo{LIDBegin: InformAllLIDs, Generic: 1, Subscribe: 1, Type: InformAllTypes, TrapNumber: TrapGIDInService, QPN: 1, ProducerType: InformAllProducers}, 4, 0},
	{"MCMemberRecord of a member", "0103028100000000 000200000000004f 0038000000000000 000000000000000000000000 0000000000000000 0007000000000000 000130c7" +
		"ff15a01b000000000000000000000007 fe800000000000000000000000100003 00000001 c001 84 00 ffff 83 80 00000000 51",
		saHeader(MethodGetResp, AttrMCMemberRecord, 0x200000000004f), goldenGroup(goldenGID(goldenClient), JoinFull), 7,
		MemberMaskMGID | MemberMaskPortGID | MemberMaskQKey | MemberMaskTClass | MemberMaskPKey | MemberMaskSL | MemberMaskFlowLabel | MemberMaskJoinState},
	{"MCMemberRecord to the untrusted", "0103028100000000 0003000000000017 0038000000000000 000000000000000000000000 0000000000000000 0007000000000000 00000001" +
		"ff15a01b000000000000000000000007 00000000000000000000000000000000 00000001 c001 84 00 ffff 83 80 00000000 50",
		saHeader(MethodGetResp, AttrMCMemberRecord, 0x3000000000017), goldenGroup(GID{}, 0), 7, MemberMaskMGID},
	{"PathRecord", "0103028100000000 0002000000000059 0035000000000000 000000000000000000000000 0000000000000000 0008000000000000 0000000c" +
		"0000000000000000 fe800000000000000000000000100005 fe800000000000000000000000100003 0004 0003 00000000 00 80 ffff 0000 84 83 92",
		saHeader(MethodGetResp, AttrPathRecord, 0x2000000000059),
		PathRecord{DGID: goldenGID(goldenOther), SGID: goldenGID(goldenClient), DLID: 4, SLID: 3, Reversible: true, PKey: 0xffff, MTUSelector: SelectExactly, MTU: MTU2048,
			RateSelector: SelectExactly, Rate: 3, LifeTimeSelector: SelectExactly, LifeTime: 18}, 8, PathMaskSGID | PathMaskDGID},
	{"SMInfoRecord", "0103028100000000 0002000000000065 0018000000000000 000000000000000000000000 0000000000000000 0004000000000000 00000000" +
		"00010000 0000000000100001 0000000000000000 0000003d 03",
		saHeader(MethodGetResp, AttrSMInfoRecord, 0x2000000000065),
		SMInfoRecord{LID: 1, SMInfo: SMInfo{GUID: goldenManager, ActCount: 0x3d, State: SMMaster}}, 4, 0},
	{"PortInfoRecord", "0103028100000000 0002000000000069 0012000000000000 000000000000000000000000 0000000000000000 0009000000000000 00000001" +
		"0004 01 00 0000000000000000 fe80000000000000 0004 0001 0050c048 0000 0ff9 01 02 1f 02 74 52 00 11 40 40 00 08 08 04 e0 40 0000 0000 0000 20 1f 00 00 0000 00000000 0000 30",
		saHeader(MethodGetResp, AttrPortInfoRecord, 0x2000000000069),
		PortInfoRecord{EndportLID: 4, PortNum: 1, PortInfo: goldenPort(4, 0x50c048)}, 9, PortMaskEndportLID},
	{"GUIDInfoRecord", "0103028100000000 000200000000006d 0030000000000000 000000000000000000000000 0000000000000000 0009000000000000 00000023" +
		"0003 00 00 00000000 0000000000100003 0014050000000001",
		saHeader(MethodGetResp, AttrGUIDInfoRecord, 0x200000000006d),
		GUIDInfoRecord{LID: 3, GUIDs: [GUIDsPerBlock]GUID{goldenClient, 0x0014050000000001}}, 9, GUIDInfoMaskLID | GUIDInfoMaskBlockNum | GUIDInfoMaskGUID(1)},
	{"NodeRecord", "0103028100000000 0002000000000073 0011000000000000 000000000000000000000000 0000000000000000 000e000000000000 00000001" +
		"00030000 01 01 01 01 0000000000100002 0000000000100002 0000000000100003 0040 0000 000000a1 01 000000 636c69656e74",
		saHeader(MethodGetResp, AttrNodeRecord, 0x2000000000073),
		NodeRecord{LID: 3, NodeInfo: NodeInfo{BaseVersion: 1, ClassVersion: 1, Type: NodeCA, Ports: 1, SystemImageGUID: 0x100002, NodeGUID: 0x100002, PortGUID: goldenClient,
			PartitionCap: 64, Revision: 0xa1, LocalPort: 1}, Description: goldenName("client")}, 14, NodeMaskLID},
	{"SMInfo", "0101018100000000 000200000000007d 0020000000000000" + strings.Repeat("00", 40) + "0000000000100001 2222222222222222 0000003e 03",
		smpHeader(AttrSMInfo, 0x200000000007d), SMInfo{GUID: goldenManager, SMKey: 0x2222222222222222, ActCount: 0x3e, State: SMMaster}, 0, 0},
	{"PortInfo", "0101018100000000 0002000000000079 0015000000000000" + strings.Repeat("00", 40) +
		"0000000000000000 fe80000000000000 0001 0001 0050c04a 0000 0ff9 01 02 1f 02 74 52 00 11 40 40 00 08 08 04 e0 40 0000 0000 0000 20 1f 00 00 0000 00000000 0000 30",
		smpHeader(AttrPortInfo, 0x2000000000079), goldenPort(1, 0x50c048|CapSM), 0, 0},
	{"P_KeyTable", "0101018100000000 000200000000007b 0016000000000000" + strings.Repeat("00", 40) + "ffff",
		smpHeader(AttrPKeyTable, 0x200000000007b), PKeyTable{PKeys: [PKeysPerBlock]uint16{0xffff}}, 0, 0},
	{"ClassPortInfo", "0103028100000000 0002000000000007 0001000000000000 000000000000000000000000 0000000000000000 0000000000000000 00000000" +
		"01 02 2602 0016bd10" + strings.Repeat("00", 24) + "00000001 80010000" + strings.Repeat("00", 28) + "80010000",
		saHeader(MethodGetResp, AttrClassPortInfo, 0x2000000000007),
		ClassPortInfo{BaseVersion: 1, ClassVersion: 2, CapabilityMask: 0x2602, CapabilityMask2: 0xb5e8, RespTime: 16, RedirectQP: 1, RedirectQKey: 0x80010000, TrapQKey: 0x80010000}, 0, 0},
}

// parserOf returns the parser of attributes of r's type.
func parserOf(t *testing.T, r Record) func([]byte) (Record, error) {
	for _, a := range attributes {
		if zero, err := a.parse(make([]byte, a.length)); err == nil && reflect.TypeOf(zero) == reflect.TypeOf(r) {
			return a.parse
		}
	}
	t.Fatalf("no parser of %T", r)
	return nil
}

// TestGolden parses what opensm and ibsim sent, and appends it again.
func TestGolden(t *testing.T) {
	for _, g := range goldens {
		b, err := hex.DecodeString(strings.ReplaceAll(g.mad, " ", ""))
		if err != nil {
			t.Fatalf("%s: %v", g.name, err)
		}
		var m MAD
		copy(m[:], b)
		var data []byte
		var again MAD
		var header Header
		if g.header.Class == ClassSubnAdm {
			sa, err := ParseSA(&m)
			if err != nil {
				t.Fatal(err)
			}
			if sa.AttributeOffset != g.offset || sa.ComponentMask != g.mask || sa.RMPP != (RMPP{}) {
				t.Errorf("%s: offset %d, mask %#x, RMPP %+v, want %d, %#x and none", g.name, sa.AttributeOffset, sa.ComponentMask, sa.RMPP, g.offset, g.mask)
			}
			data, again, header = sa.Data[:], sa.MAD(), sa.Header
		} else {
			smp, err := ParseSMP(&m)
			if err != nil {
				t.Fatal(err)
			}
			data, again, header = smp.Data[:], smp.MAD(), smp.Header
		}
		if header != g.header {
			t.Errorf("%s: header %+v, want %+v", g.name, header, g.header)
		}
		if again != m {
			t.Errorf("%s: appended again %x, was %x", g.name, again, m)
		}
		want := g.data.Append(nil)
		got, err := parserOf(t, g.data)(data[:len(want)])
		if err != nil || got != g.data {
			t.Errorf("%s: %+v, %v, want %+v", g.name, got, err, g.data)
		}
		if string(want) != string(data[:len(want)]) {
			t.Errorf("%s: appended %x, was %x", g.name, want, data[:len(want)])
		}
	}
}
