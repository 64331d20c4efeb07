package sa

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// names returns the names of the services that a requester sees by GetTable.
func (l *lab) names(a ask, mask mad.Mask, want mad.ServiceRecord) (list []string) {
	l.Helper()
	for _, v := range l.records(l.do(a.table(mad.AttrServiceRecord, mask, want))) {
		list = append(list, v.Name.String())
	}
	return list
}

func TestServiceIsFoundByWhatItIs(t *testing.T) {
	l := newLab(t)
	docs := serviceAt(1, alpha, "docs")
	docs.Data16[0], docs.Data8[3], docs.Data64[0] = 7171, 9, 1<<30
	l.ok(by(alpha).to(mad.MethodSet, mad.AttrServiceRecord, serviceMask|dataMask, docs))
	l.ok(by(beta).setService(serviceAt(1, beta, "films")))
	l.ok(by(beta).setService(serviceAt(2, beta, "docs")))
	for what, c := range map[string]struct {
		mask mad.Mask
		want mad.ServiceRecord
		n    int
	}{
		"all":               {0, mad.ServiceRecord{}, 3},
		"name":              {mad.ServiceMaskName, docs, 2},
		"ID":                {mad.ServiceMaskID, docs, 2},
		"GID":               {mad.ServiceMaskGID, serviceAt(0, beta, ""), 2},
		"name and GID":      {mad.ServiceMaskName | mad.ServiceMaskGID, docs, 1},
		"one word of data":  {1 << 23, docs, 1},
		"a byte of data":    {1 << 10, docs, 1},
		"a byte of another": {1 << 11, docs, 3},
		"none":              {mad.ServiceMaskID, serviceAt(3, alpha, ""), 0},
		"an unknown bit":    {1 << 63, docs, 3},
	} {
		if n := len(l.names(by(gamma), c.mask, c.want)); n != c.n {
			t.Errorf("%s: %d services, want %d", what, n, c.n)
		}
	}
	got, err := mad.ParseServiceRecord(l.ok(by(gamma).to(mad.MethodGet, mad.AttrServiceRecord, serviceRID, docs)).sa.Data[:mad.ServiceRecordLen])
	if err != nil || got != docs {
		t.Errorf("%+v, %v", got, err)
	}
	l.want("Get of two", by(gamma).to(mad.MethodGet, mad.AttrServiceRecord, mad.ServiceMaskName, docs), false, mad.StatusTooManyRecords)
	l.want("Get of none", by(gamma).to(mad.MethodGet, mad.AttrServiceRecord, mad.ServiceMaskID, serviceAt(3, alpha, "")), false, mad.StatusNoRecords)
}

func TestServiceThatIsNone(t *testing.T) {
	l := newLab(t)
	bad := func(f func(*mad.ServiceRecord)) mad.ServiceRecord {
		v := serviceAt(1, alpha, "docs")
		f(&v)
		return v
	}
	for what, c := range map[string]struct {
		v      mad.ServiceRecord
		mask   mad.Mask
		status mad.Status
	}{
		"no ID":                    {serviceAt(1, alpha, "docs"), serviceMask &^ mad.ServiceMaskID, mad.StatusInsufficientComponents},
		"no GID":                   {serviceAt(1, alpha, "docs"), serviceMask &^ mad.ServiceMaskGID, mad.StatusInsufficientComponents},
		"lease of 0":               {bad(func(v *mad.ServiceRecord) { v.Lease = 0 }), serviceMask, mad.StatusReqInvalid},
		"GID of nobody":            {serviceAt(1, 0x77, "docs"), serviceMask, mad.StatusInvalidGID},
		"GID of another subnet":    {bad(func(v *mad.ServiceRecord) { v.GID = mad.MakeGID(1, alpha) }), serviceMask, mad.StatusInvalidGID},
		"escape sequence":          {serviceAt(1, alpha, "a\x1b[2J"), serviceMask, mad.StatusReqInvalid},
		"right-to-left override":   {serviceAt(1, alpha, "txt.\u202egpj"), serviceMask, mad.StatusReqInvalid},
		"not UTF-8":                {serviceAt(1, alpha, "\xff"), serviceMask, mad.StatusReqInvalid},
		"bytes behind the end":     {bad(func(v *mad.ServiceRecord) { copy(v.Name[:], "a\x00b") }), serviceMask, mad.StatusReqInvalid},
		"no name, which may be so": {serviceAt(1, alpha, "\x1b"), serviceRID, mad.StatusOK},
	} {
		l.want(what, by(alpha).to(mad.MethodSet, mad.AttrServiceRecord, c.mask, c.v), false, c.status)
	}
	l.want("Delete of none", by(alpha).deleteService(serviceAt(2, alpha, "")), false, mad.StatusNoRecords)
}

func TestLease(t *testing.T) {
	l := newLab(t)
	short := serviceAt(1, alpha, "short")
	short.Lease = 10
	l.ok(by(alpha).setService(short))
	l.ok(by(alpha).setService(serviceAt(2, alpha, "long")))
	l.wait(9500 * time.Millisecond)
	if list := l.records(l.do(by(beta).table(mad.AttrServiceRecord, mad.ServiceMaskID, short))); len(list) != 1 || list[0].Lease != 1 {
		t.Errorf("half a second before its end: %v", list)
	}
	l.ok(by(alpha).setService(short)) // renewed
	l.wait(9 * time.Second)
	if list := l.names(by(beta), 0, short); len(list) != 2 {
		t.Errorf("9 seconds after its renewal: %q", list)
	}
	l.now = l.now.Add(time.Second) // without a tick
	if list := l.names(by(beta), 0, short); len(list) != 1 || list[0] != "long" {
		t.Errorf("10 seconds after its renewal: %q", list)
	}
}

// A Set of a record that is there keeps what it does not have.
func TestRenewalKeepsWhatItLeavesOut(t *testing.T) {
	l := newLab(t)
	v := serviceAt(1, alpha, "docs")
	v.Key, v.Data64[0], v.Data64[1] = mad.ServiceKey{1}, 5, 6
	l.ok(by(alpha).to(mad.MethodSet, mad.AttrServiceRecord, serviceMask|dataMask|mad.ServiceMaskKey, v))
	again := serviceAt(1, alpha, "")
	again.Lease, again.Data64[1] = 60, 7
	l.ok(by(alpha).to(mad.MethodSet, mad.AttrServiceRecord, serviceRID|mad.ServiceMaskLease|1<<36, again))
	got := l.records(l.do(by(beta).trusted().table(mad.AttrServiceRecord, 0, v)))
	if v.Lease, v.Data64[1] = 60, 7; len(got) != 1 || got[0] != v {
		t.Errorf("%+v, want %+v", got, v)
	}
}

func TestServiceKeyIsShownToTheTrustedAlone(t *testing.T) {
	for what, f := range map[string]func(*Options){"without the model": func(*Options) {}, "with it": model} {
		l := newLab(t, f)
		v := serviceAt(1, alpha, "docs")
		v.Key = mad.ServiceKey{1, 2, 3}
		set := l.ok(by(alpha).to(mad.MethodSet, mad.AttrServiceRecord, serviceMask|mad.ServiceMaskKey, v))
		get := func(a ask, mask mad.Mask, want mad.ServiceRecord) mad.ServiceRecord {
			got, err := mad.ParseServiceRecord(l.do(a.to(mad.MethodGet, mad.AttrServiceRecord, mask, want)).sa.Data[:mad.ServiceRecordLen])
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		answered, _ := mad.ParseServiceRecord(set.sa.Data[:mad.ServiceRecordLen])
		if answered.Key != (mad.ServiceKey{}) {
			t.Errorf("%s: the answer to Set has the key", what)
		}
		if got := get(by(beta), serviceRID, v); got.Key != (mad.ServiceKey{}) || got.ID != 1 {
			t.Errorf("%s: untrusted: %v %x", what, got.ID, [16]byte(got.Key))
		}
		if got := get(by(beta).trusted(), serviceRID, v); got.Key != v.Key {
			t.Errorf("%s: trusted: %x", what, [16]byte(got.Key))
		}
		l.want(what+": whether the key is that", by(beta).to(mad.MethodGet, mad.AttrServiceRecord, mad.ServiceMaskKey, v), false, mad.StatusNoRecords)
	}
}

// Who may change and delete a record: by whom it was registered, whose port it is about, who has its key, who is trusted.
func TestServiceIsChangedByWhoMay(t *testing.T) {
	key := mad.ServiceKey{7}
	for what, c := range map[string]struct {
		registered, by ask
		at             mad.GUID
		keyed          bool
		key            mad.ServiceKey
		status         mad.Status
	}{
		"by its own":                              {by(alpha), by(alpha), alpha, true, mad.ServiceKey{}, mad.StatusOK},
		"by another":                              {by(alpha), by(beta), alpha, true, mad.ServiceKey{}, mad.StatusDenied},
		"by another with a wrong key":             {by(alpha), by(beta), alpha, true, mad.ServiceKey{8}, mad.StatusDenied},
		"by another with the key":                 {by(alpha), by(beta), alpha, true, key, mad.StatusOK},
		"by another, no key":                      {by(alpha), by(beta), alpha, false, mad.ServiceKey{}, mad.StatusDenied},
		"by the trusted":                          {by(alpha), by(beta).trusted(), alpha, true, mad.ServiceKey{}, mad.StatusOK},
		"by its proxy":                            {by(beta), by(beta), alpha, false, mad.ServiceKey{}, mad.StatusOK},
		"by the port that it is about":            {by(beta), by(alpha), alpha, true, mad.ServiceKey{}, mad.StatusOK},
		"by a third":                              {by(beta), by(gamma), alpha, true, mad.ServiceKey{}, mad.StatusDenied},
		"a vport's by its host":                   {byVPort(vport), by(alpha), vport, true, mad.ServiceKey{}, mad.StatusOK},
		"a vport's by the vport":                  {byVPort(vport), byVPort(vport), vport, true, mad.ServiceKey{}, mad.StatusOK},
		"a vport's by another vport of that host": {byVPort(vport), byVPort(vport2), vport, true, mad.ServiceKey{}, mad.StatusDenied},
		"a host's by its vport":                   {by(alpha), byVPort(vport), alpha, true, mad.ServiceKey{}, mad.StatusDenied},
	} {
		l := newLab(t)
		v := serviceAt(1, c.at, "docs")
		mask := serviceMask
		if c.keyed {
			v.Key = key
			mask |= mad.ServiceMaskKey
		}
		l.ok(c.registered.to(mad.MethodSet, mad.AttrServiceRecord, mask, v))
		changed := serviceAt(1, c.at, "other")
		changed.Key = c.key
		l.want("Set "+what, c.by.to(mad.MethodSet, mad.AttrServiceRecord, serviceMask|mad.ServiceMaskKey, changed), false, c.status)
		name := "docs"
		if c.status == mad.StatusOK {
			name = "other"
		}
		if list := l.names(by(beta), 0, v); len(list) != 1 || list[0] != name {
			t.Errorf("after Set %s: %q", what, list)
		}
		l.want("Delete "+what, c.by.to(mad.MethodDelete, mad.AttrServiceRecord, serviceRID|mad.ServiceMaskKey, changed), false, c.status)
		if n := len(l.names(by(beta), 0, v)); (n == 0) != (c.status == mad.StatusOK) {
			t.Errorf("after Delete %s: %d services", what, n)
		}
	}
}

// Who knows the key cannot take the record over by another key.
func TestKeyIsReplacedByTheOwnerAlone(t *testing.T) {
	l := newLab(t)
	v := serviceAt(1, alpha, "docs")
	v.Key = mad.ServiceKey{7}
	mask := serviceMask | mad.ServiceMaskKey
	l.ok(by(alpha).to(mad.MethodSet, mad.AttrServiceRecord, mask, v))
	l.ok(by(beta).to(mad.MethodSet, mad.AttrServiceRecord, mask, v))
	if s := l.Services(l.now); s[0].Owner.GUID != alpha || s[0].Record.Key != (mad.ServiceKey{}) || !s[0].Keyed {
		t.Errorf("%+v", s)
	}
	v.Key = mad.ServiceKey{9}
	l.ok(by(alpha).to(mad.MethodSet, mad.AttrServiceRecord, mask, v))
	if got := l.records(l.do(by(beta).trusted().table(mad.AttrServiceRecord, 0, v))); got[0].Key != v.Key {
		t.Errorf("%x", [16]byte(got[0].Key))
	}
}
