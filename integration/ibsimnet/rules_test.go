package ibsimnet

import (
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// trust is what a request has for an SA_Key.
type trust int

const (
	untrusted trust = iota // zero
	trusted                // the right one
	impostor               // another one
)

const (
	theSAKey   mad.Key = 0x1111111111111111
	anotherKey mad.Key = 0x3333333333333333
)

func (t trust) key() mad.Key { return [...]mad.Key{0, theSAKey, anotherKey}[t] }

// reply is what a directory does about a request: nothing, or an answer with a status, whose data is right if check finds nothing wrong.
type reply struct {
	silent bool
	status mad.Status
	check  func(w world, data []byte) error
}

func (r reply) String() string {
	if r.silent {
		return "silence"
	}
	return r.status.String()
}

var silence = reply{silent: true}

func status(s mad.Status) reply { return reply{status: s} }

// rule is one request of a story, and what a directory without the enhanced trust model answers.
type rule struct {
	name   string
	host   string // that asks
	trust  trust
	method mad.Method
	attr   mad.Attribute
	mask   mad.Mask
	record func(w world) mad.Record // nil: none
	opensm reply
	// ours is what IronWarp's directory answers where that is not the same, and why says why.
	ours *reply
	why  string
}

// world is a fabric with a directory, that of opensm or IronWarp's, and the hosts manager, client and other.
type world interface {
	gid(host string) mad.GID
	lid(host string) mad.LID
	// ask returns the answer's status and data, as far as it fits in one MAD, or answered false.
	ask(t testing.TB, host string, request mad.SA) (status mad.Status, data []byte, answered bool)
}

// A service, a group and a subscription of the client's.
const (
	serviceRID  = mad.ServiceMaskID | mad.ServiceMaskGID | mad.ServiceMaskPKey
	serviceMask = serviceRID | mad.ServiceMaskLease | mad.ServiceMaskKey | mad.ServiceMaskName
	memberRID   = mad.MemberMaskMGID | mad.MemberMaskPortGID | mad.MemberMaskJoinState
	memberMask  = memberRID | mad.MemberMaskQKey | mad.MemberMaskTClass | mad.MemberMaskPKey | mad.MemberMaskSL | mad.MemberMaskFlowLabel
	pathMask    = mad.PathMaskSGID | mad.PathMaskDGID
	guidMask    = mad.GUIDInfoMaskLID | mad.GUIDInfoMaskBlockNum
)

func service(changes ...func(*mad.ServiceRecord)) func(world) mad.Record {
	return func(w world) mad.Record {
		r := mad.ServiceRecord{ID: 0xabc, GID: w.gid("client"), PKey: 0xffff, Lease: 1000, Key: mad.ServiceKey{1, 2, 3}}
		r.Name, _ = mad.MakeName("disk") // it is short
		for _, change := range changes {
			change(&r)
		}
		return r
	}
}

func member(host string, changes ...func(*mad.MCMemberRecord)) func(world) mad.Record {
	return func(w world) mad.Record {
		r := mad.MCMemberRecord{MGID: mad.GID{0xff, 0x15, 0xa0, 0x1b, 15: 7}, PortGID: mad.MakeGID(mad.LinkLocalPrefix, stranger), QKey: 1, PKey: 0xffff, Scope: 5, JoinState: mad.JoinFull}
		if host != "" {
			r.PortGID = w.gid(host)
		}
		for _, change := range changes {
			change(&r)
		}
		return r
	}
}

// stranger is the GUID of no port.
const stranger mad.GUID = 0x777

func subscription(changes ...func(world, *mad.InformInfo)) func(world) mad.Record {
	return func(w world) mad.Record {
		r := mad.InformInfo{
			LIDBegin: mad.InformAllLIDs, Generic: 1, Subscribe: 1, Type: mad.InformAllTypes, TrapNumber: mad.TrapGIDInService, QPN: 1,
			ProducerType: mad.InformAllProducers,
		}
		for _, change := range changes {
			change(w, &r)
		}
		return r
	}
}

func trap(n uint16) func(world, *mad.InformInfo) {
	return func(_ world, r *mad.InformInfo) { r.TrapNumber = n }
}

func end(_ world, r *mad.InformInfo) { r.Subscribe = 0 }

func path(from, to string) func(world) mad.Record {
	return func(w world) mad.Record {
		r := mad.PathRecord{SGID: w.gid(from), DGID: mad.MakeGID(mad.LinkLocalPrefix, stranger)}
		if to != "" {
			r.DGID = w.gid(to)
		}
		return r
	}
}

// serviceIs checks the first record of an answer: the client's, with its key or without.
func serviceIs(key mad.ServiceKey) reply {
	return reply{check: func(w world, data []byte) error {
		if len(data) < mad.ServiceRecordLen {
			return fmt.Errorf("%d bytes", len(data))
		}
		r, err := mad.ParseServiceRecord(data[:mad.ServiceRecordLen])
		if err != nil {
			return err
		}
		if name, err := r.Name.Text(); err != nil || name != "disk" || r.ID != 0xabc || r.GID != w.gid("client") || r.Key != key {
			return fmt.Errorf("%+v with the key %x, %v", r, [16]byte(r.Key), err)
		}
		return nil
	}}
}

// memberIs checks the first record of an answer: the group with a port, or none, as the member.
func memberIs(host string, state uint8) reply {
	return reply{check: func(w world, data []byte) error {
		if len(data) < mad.MCMemberRecordLen {
			return fmt.Errorf("%d bytes", len(data))
		}
		r, err := mad.ParseMCMemberRecord(data[:mad.MCMemberRecordLen])
		if err != nil {
			return err
		}
		var port mad.GID
		if host != "" {
			port = w.gid(host)
		}
		if r.PortGID != port || r.JoinState != state || r.MLID < mad.FirstMulticastLID || r.QKey != 1 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	}}
}

// pathIs checks the first record of an answer.
func pathIs(from, to string) reply {
	return reply{check: func(w world, data []byte) error {
		if len(data) < mad.PathRecordLen {
			return fmt.Errorf("%d bytes", len(data))
		}
		r, err := mad.ParsePathRecord(data[:mad.PathRecordLen])
		if err != nil {
			return err
		}
		if r.SGID != w.gid(from) || r.DGID != w.gid(to) || r.SLID != w.lid(from) || r.DLID != w.lid(to) || r.PKey != 0xffff {
			return fmt.Errorf("%+v", r)
		}
		return nil
	}}
}

var empty = reply{check: func(_ world, data []byte) error {
	if len(data) != 0 {
		return fmt.Errorf("%d bytes", len(data))
	}
	return nil
}}

// differs is what IronWarp's directory answers instead.
func differs(r reply) *reply { return &r }

const (
	get      = mad.MethodGet
	set      = mad.MethodSet
	getTable = mad.MethodGetTable
	remove   = mad.MethodDelete
)

// baseRules is a story: each request is asked after the ones before it.
var baseRules = []rule{
	{name: "SA_Key of zero", host: "client", method: get, attr: mad.AttrClassPortInfo},
	{name: "right SA_Key", host: "client", trust: trusted, method: get, attr: mad.AttrClassPortInfo},
	{name: "wrong SA_Key", host: "client", trust: impostor, method: get, attr: mad.AttrClassPortInfo, opensm: silence},
	{name: "wrong SA_Key in a Set", host: "client", trust: impostor, method: set, attr: mad.AttrServiceRecord, mask: serviceMask, record: service(), opensm: silence},
	{name: "unknown attribute", host: "client", method: get, attr: 0x99, opensm: silence, ours: differs(status(mad.StatusUnsupportedAttribute)),
		why: "section 13.4.7 has a status for it"},
	{name: "unknown method", host: "client", method: 0x1d, attr: mad.AttrPathRecord, opensm: silence, ours: differs(status(mad.StatusUnsupportedMethod)),
		why: "section 13.4.7 has a status for it"},

	{name: "Get of no service", host: "other", method: get, attr: mad.AttrServiceRecord, mask: mad.ServiceMaskName, record: service(), opensm: status(mad.StatusNoRecords)},
	{name: "table of no service", host: "other", method: getTable, attr: mad.AttrServiceRecord, mask: mad.ServiceMaskName, record: service(), opensm: empty},
	{name: "Delete of no service", host: "client", method: remove, attr: mad.AttrServiceRecord, mask: serviceRID, record: service(), opensm: status(mad.StatusNoRecords)},
	{name: "service without GID", host: "client", method: set, attr: mad.AttrServiceRecord, mask: serviceMask &^ mad.ServiceMaskGID, record: service(),
		opensm: status(mad.StatusReqInvalid), ours: differs(status(mad.StatusInsufficientComponents)), why: "section 15.2.6 has a status for it"},
	{name: "a service", host: "client", method: set, attr: mad.AttrServiceRecord, mask: serviceMask, record: service(), opensm: serviceIs(mad.ServiceKey{})},
	{name: "ServiceKey to the untrusted", host: "other", method: get, attr: mad.AttrServiceRecord, mask: mad.ServiceMaskName, record: service(), opensm: serviceIs(mad.ServiceKey{})},
	{name: "ServiceKey to the untrusted who has it", host: "client", method: get, attr: mad.AttrServiceRecord, mask: mad.ServiceMaskName, record: service(), opensm: serviceIs(mad.ServiceKey{})},
	{name: "ServiceKey to the trusted", host: "other", trust: trusted, method: get, attr: mad.AttrServiceRecord, mask: mad.ServiceMaskName, record: service(), opensm: serviceIs(mad.ServiceKey{1, 2, 3})},
	{name: "ServiceKey in a table to the untrusted", host: "other", method: getTable, attr: mad.AttrServiceRecord, opensm: serviceIs(mad.ServiceKey{})},
	{name: "ServiceKey in a table to the trusted", host: "other", trust: trusted, method: getTable, attr: mad.AttrServiceRecord, opensm: serviceIs(mad.ServiceKey{1, 2, 3})},
	{name: "a service by its key, untrusted", host: "other", method: get, attr: mad.AttrServiceRecord, mask: mad.ServiceMaskName | mad.ServiceMaskKey, record: service(),
		opensm: serviceIs(mad.ServiceKey{}), ours: differs(status(mad.StatusNoRecords)), why: "whether it was found would say whether the key is right"},
	{name: "another service", host: "client", method: set, attr: mad.AttrServiceRecord, mask: serviceMask &^ mad.ServiceMaskLease,
		record: service(func(r *mad.ServiceRecord) { r.ID = 0xdef })},
	{name: "Get of two services", host: "other", method: get, attr: mad.AttrServiceRecord, mask: mad.ServiceMaskName, record: service(), opensm: status(mad.StatusTooManyRecords)},
	{name: "Delete of another's service", host: "other", method: remove, attr: mad.AttrServiceRecord, mask: serviceRID, record: service(),
		ours: differs(status(mad.StatusDenied)), why: "it takes the ServiceKey"},
	{name: "the service again", host: "client", method: set, attr: mad.AttrServiceRecord, mask: serviceMask, record: service(), opensm: serviceIs(mad.ServiceKey{})},
	{name: "Set of another's service with another key", host: "other", method: set, attr: mad.AttrServiceRecord, mask: serviceMask,
		record: service(func(r *mad.ServiceRecord) { r.Key = mad.ServiceKey{9} }), ours: differs(status(mad.StatusDenied)), why: "it takes the ServiceKey"},
	{name: "Delete of one's own service", host: "client", method: remove, attr: mad.AttrServiceRecord, mask: serviceRID, record: service(), opensm: serviceIs(mad.ServiceKey{})},
	{name: "Delete of it again", host: "client", method: remove, attr: mad.AttrServiceRecord, mask: serviceRID, record: service(), opensm: status(mad.StatusNoRecords)},

	{name: "end of no subscription", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription(end), opensm: status(mad.StatusReqInvalid)},
	{name: "subscription to trap 64", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription()},
	{name: "the same again", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription()},
	{name: "subscription to trap 66", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription(trap(mad.TrapGroupCreated))},
	{name: "subscription to trap 144", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription(trap(mad.TrapCapabilityMask))},
	{name: "subscription to trap 255", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription(trap(255))},
	{name: "subscription to trap 256, untrusted", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription(trap(mad.TrapMKey)), opensm: status(mad.StatusReqInvalid),
		ours: differs(status(mad.StatusDenied)), why: "section 15.2.6 has a status for it"},
	{name: "subscription to trap 257, untrusted", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription(trap(mad.TrapPKey)), opensm: status(mad.StatusReqInvalid),
		ours: differs(status(mad.StatusDenied)), why: "section 15.2.6 has a status for it"},
	{name: "subscription to trap 258, untrusted", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription(trap(mad.TrapQKey)), opensm: status(mad.StatusReqInvalid),
		ours: differs(status(mad.StatusDenied)), why: "section 15.2.6 has a status for it"},
	{name: "subscription to trap 259, untrusted", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription(trap(mad.TrapSwitchPKey)), opensm: status(mad.StatusReqInvalid),
		ours: differs(status(mad.StatusDenied)), why: "section 15.2.6 has a status for it"},
	{name: "subscription to trap 260, untrusted", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription(trap(260))},
	{name: "subscription to trap 256, trusted", host: "client", trust: trusted, method: set, attr: mad.AttrInformInfo, record: subscription(trap(mad.TrapMKey))},
	{name: "subscription to trap 259, trusted", host: "client", trust: trusted, method: set, attr: mad.AttrInformInfo, record: subscription(trap(mad.TrapSwitchPKey))},
	{name: "Subscribe of 2", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription(func(_ world, r *mad.InformInfo) { r.Subscribe = 2 }), opensm: status(mad.StatusReqInvalid)},
	{name: "subscription about another port", host: "client", method: set, attr: mad.AttrInformInfo,
		record: subscription(func(w world, r *mad.InformInfo) { r.GID, r.LIDBegin = w.gid("other"), 0 })},
	{name: "subscription about no port", host: "client", method: set, attr: mad.AttrInformInfo,
		record: subscription(func(_ world, r *mad.InformInfo) { r.GID, r.LIDBegin = mad.MakeGID(mad.LinkLocalPrefix, stranger), 0 }), opensm: status(mad.StatusReqInvalid),
		ours: differs(status(mad.StatusOK)), why: "the port may be a host that comes later"},
	{name: "subscription to LIDs 9 to 3", host: "client", method: set, attr: mad.AttrInformInfo,
		record: subscription(func(_ world, r *mad.InformInfo) { r.LIDBegin, r.LIDEnd = 9, 3 }), opensm: status(mad.StatusReqInvalid),
		ours: differs(status(mad.StatusOK)), why: "an end below the beginning stands for one LID"},
	{name: "subscription to a vendor's notices", host: "client", method: set, attr: mad.AttrInformInfo,
		record: subscription(func(_ world, r *mad.InformInfo) {
			r.Generic, r.ProducerType, r.TrapNumber = 0, mad.Vendor, mad.VendorExportCome
		})},
	{name: "end of another's subscription", host: "other", method: set, attr: mad.AttrInformInfo, record: subscription(end), opensm: status(mad.StatusReqInvalid)},
	{name: "end of one's own", host: "client", method: set, attr: mad.AttrInformInfo, record: subscription(end)},
	{name: "Get of InformInfo", host: "client", method: get, attr: mad.AttrInformInfo, record: subscription(), opensm: status(mad.StatusUnsupportedAttribute)},

	{name: "join of no group", host: "client", method: set, attr: mad.AttrMCMemberRecord, mask: memberRID, record: member("client"), opensm: status(mad.StatusInsufficientComponents)},
	{name: "a group of a non-member", host: "client", method: set, attr: mad.AttrMCMemberRecord, mask: memberMask,
		record: member("client", func(r *mad.MCMemberRecord) { r.JoinState = mad.JoinNonMember }), opensm: status(mad.StatusReqInvalid)},
	{name: "a group", host: "client", method: set, attr: mad.AttrMCMemberRecord, mask: memberMask, record: member("client"), opensm: memberIs("client", mad.JoinFull)},
	{name: "the group to the untrusted", host: "other", method: get, attr: mad.AttrMCMemberRecord, mask: mad.MemberMaskMGID, record: member("client"), opensm: memberIs("", 0)},
	{name: "the group to the trusted", host: "other", trust: trusted, method: get, attr: mad.AttrMCMemberRecord, mask: mad.MemberMaskMGID, record: member("client"),
		opensm: memberIs("client", mad.JoinFull)},
	{name: "join as nothing", host: "other", method: set, attr: mad.AttrMCMemberRecord, mask: memberRID,
		record: member("other", func(r *mad.MCMemberRecord) { r.JoinState = 0 }), opensm: status(mad.StatusReqInvalid)},
	{name: "join with another Q_Key", host: "other", method: set, attr: mad.AttrMCMemberRecord, mask: memberRID | mad.MemberMaskQKey,
		record: member("other", func(r *mad.MCMemberRecord) { r.QKey = 5 }), opensm: status(mad.StatusReqInvalid)},
	{name: "join with another P_Key", host: "other", method: set, attr: mad.AttrMCMemberRecord, mask: memberRID | mad.MemberMaskPKey,
		record: member("other", func(r *mad.MCMemberRecord) { r.PKey = 0x8001 }), opensm: status(mad.StatusReqInvalid)},
	{name: "join of no port", host: "other", method: set, attr: mad.AttrMCMemberRecord, mask: memberRID, record: member(""), opensm: status(mad.StatusReqInvalid),
		ours: differs(status(mad.StatusInvalidGID)), why: "section 15.2.6 has a status for it"},
	{name: "join", host: "other", method: set, attr: mad.AttrMCMemberRecord, mask: memberRID, record: member("other"), opensm: memberIs("other", mad.JoinFull)},
	{name: "leave as what one is not", host: "client", method: remove, attr: mad.AttrMCMemberRecord, mask: memberRID,
		record: member("client", func(r *mad.MCMemberRecord) { r.JoinState = mad.JoinSendOnly }), opensm: status(mad.StatusReqInvalid)},
	{name: "leave", host: "client", method: remove, attr: mad.AttrMCMemberRecord, mask: memberRID, record: member("client")},
	{name: "leave again", host: "client", method: remove, attr: mad.AttrMCMemberRecord, mask: memberRID, record: member("client"), opensm: status(mad.StatusReqInvalid)},
	{name: "the group with one member left", host: "client", method: get, attr: mad.AttrMCMemberRecord, mask: mad.MemberMaskMGID, record: member("client"), opensm: memberIs("", 0)},
	{name: "the last member leaves", host: "other", method: remove, attr: mad.AttrMCMemberRecord, mask: memberRID, record: member("other")},
	{name: "the group is gone", host: "other", method: get, attr: mad.AttrMCMemberRecord, mask: mad.MemberMaskMGID, record: member("client"), opensm: status(mad.StatusNoRecords)},

	{name: "a path", host: "client", method: get, attr: mad.AttrPathRecord, mask: pathMask, record: path("client", "other"), opensm: pathIs("client", "other")},
	{name: "a path in a table", host: "client", method: getTable, attr: mad.AttrPathRecord, mask: pathMask, record: path("client", "other"), opensm: pathIs("client", "other")},
	{name: "a path by LIDs", host: "client", method: get, attr: mad.AttrPathRecord, mask: mad.PathMaskSLID | mad.PathMaskDLID,
		record: func(w world) mad.Record { return mad.PathRecord{SLID: w.lid("client"), DLID: w.lid("other")} }, opensm: pathIs("client", "other")},
	{name: "a path to no port", host: "client", method: get, attr: mad.AttrPathRecord, mask: pathMask, record: path("client", ""), opensm: status(mad.StatusNoRecords)},
	{name: "a path to no LID", host: "client", method: get, attr: mad.AttrPathRecord, mask: mad.PathMaskSLID | mad.PathMaskDLID,
		record: func(w world) mad.Record { return mad.PathRecord{SLID: w.lid("client"), DLID: 0x3000} }, opensm: status(mad.StatusNoRecords)},
	{name: "Set of a path", host: "client", method: set, attr: mad.AttrPathRecord, mask: pathMask, record: path("client", "other"), opensm: status(mad.StatusUnsupportedAttribute)},

	{name: "SM_Key to the untrusted", host: "client", method: get, attr: mad.AttrSMInfoRecord, opensm: noSMKey},
	{name: "SM_Key to the trusted", host: "client", trust: trusted, method: get, attr: mad.AttrSMInfoRecord, opensm: noSMKey},
	{name: "M_Key to the untrusted", host: "client", method: get, attr: mad.AttrPortInfoRecord, mask: mad.PortMaskEndportLID,
		record: func(w world) mad.Record { return mad.PortInfoRecord{EndportLID: w.lid("other")} }, opensm: noMKey},

	{name: "GUIDs", host: "client", method: get, attr: mad.AttrGUIDInfoRecord, mask: guidMask, record: guids("client"), opensm: aliases(0)},
	{name: "an alias GUID", host: "client", method: set, attr: mad.AttrGUIDInfoRecord, mask: guidMask | mad.GUIDInfoMaskGUID(1), record: guids("client"), opensm: aliases(1)},
	{name: "Set of the port's own GUID", host: "client", method: set, attr: mad.AttrGUIDInfoRecord, mask: guidMask | mad.GUIDInfoMaskGUID(0), record: guids("client"), opensm: status(mad.StatusReqInvalid),
		ours: differs(aliases(1)), why: "it stays as it is, which the answer shows"},
	{name: "GUIDs of no block", host: "client", method: set, attr: mad.AttrGUIDInfoRecord, mask: mad.GUIDInfoMaskLID | mad.GUIDInfoMaskGUID(1), record: guids("client"),
		opensm: status(mad.StatusInsufficientComponents)},
}

func guids(host string) func(world) mad.Record {
	return func(w world) mad.Record { return mad.GUIDInfoRecord{LID: w.lid(host)} }
}

// aliases checks that block 0 of the client's GUIDs has its own and n others.
func aliases(n int) reply {
	return reply{check: func(w world, data []byte) error {
		if len(data) < mad.GUIDInfoRecordLen {
			return fmt.Errorf("%d bytes", len(data))
		}
		r, err := mad.ParseGUIDInfoRecord(data[:mad.GUIDInfoRecordLen])
		if err != nil {
			return err
		}
		found := 0
		for _, g := range r.GUIDs[1:] {
			if g != 0 {
				found++
			}
		}
		if r.GUIDs[0] != w.gid("client").GUID() || found != n || r.LID != w.lid("client") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	}}
}

var noSMKey = reply{check: func(w world, data []byte) error {
	if len(data) < mad.SMInfoRecordLen {
		return fmt.Errorf("%d bytes", len(data))
	}
	r, err := mad.ParseSMInfoRecord(data[:mad.SMInfoRecordLen])
	if err != nil {
		return err
	}
	if r.SMInfo.SMKey != 0 || r.SMInfo.State != mad.SMMaster || r.LID != w.lid("manager") || r.SMInfo.GUID != w.gid("manager").GUID() {
		return fmt.Errorf("%+v", r)
	}
	return nil
}}

var noMKey = reply{check: func(w world, data []byte) error {
	if len(data) < mad.PortInfoRecordLen {
		return fmt.Errorf("%d bytes", len(data))
	}
	r, err := mad.ParsePortInfoRecord(data[:mad.PortInfoRecordLen])
	if err != nil {
		return err
	}
	if r.PortInfo.MKey != 0 || r.EndportLID != w.lid("other") || r.PortInfo.LID != w.lid("other") {
		return fmt.Errorf("%+v", r)
	}
	return nil
}}

// tell asks a world's directory the whole story. want chooses what is expected of it.
func tell(t *testing.T, w world, want func(rule) reply) {
	t.Helper()
	for _, r := range baseRules {
		request := mad.SA{
			Header:        mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: r.method, Attribute: r.attr},
			Key:           r.trust.key(),
			ComponentMask: r.mask,
		}
		if r.record != nil {
			copy(request.Data[:], r.record(w).Append(nil))
		}
		expected := want(r)
		got, data, answered := w.ask(t, r.host, request)
		switch {
		case !answered && !expected.silent:
			t.Errorf("%s: silence, want %v", r.name, expected)
		case answered && (expected.silent || got != expected.status):
			t.Errorf("%s: %v, want %v", r.name, got, expected)
		case answered && expected.check != nil:
			if err := expected.check(w, data); err != nil {
				t.Errorf("%s: the data is wrong: %v", r.name, err)
			}
		}
	}
}
