package partition

import (
	"errors"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/fabric/policy"
)

func TestPKeysAreReadAsTheStandardHasThem(t *testing.T) {
	for text, want := range map[string]PKey{"0x0012": 0x12, "18": 18, "0x7ffe": 0x7ffe, "0x7fff": DefaultPKey, "1": 1} {
		if k, err := ParsePKey(text); err != nil || k != want {
			t.Errorf("%s: %v, %v", text, k, err)
		}
	}
	for text, words := range map[string]string{"": "no P_Key", "0": "no P_Key", "0x8012": "write 0x0012", "0xffff": "write 0x7fff", "65536": "no P_Key", "-1": "no P_Key", "lab": "no P_Key"} {
		if k, err := ParsePKey(text); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, %v; want %q", text, k, err, words)
		}
	}
	if k := PKey(0x12); k.As(Full) != 0x8012 || k.As(Limited) != 0x12 || k.As(None) != 0 || k.As(Full).Base() != k {
		t.Errorf("%v as a full member %v, as a limited one %v, as none %v", k, k.As(Full), k.As(Limited), k.As(None))
	}
}

// TestTwoLimitedMembersNeverTalk: IBTA volume 1, section 10.9.3.
func TestTwoLimitedMembersNeverTalk(t *testing.T) {
	for _, own := range []Membership{None, Limited, Full} {
		for _, theirs := range []Membership{None, Limited, Full} {
			want := own != None && theirs != None && (own == Full || theirs == Full)
			if Links(own, theirs) != want || Links(theirs, own) != want {
				t.Errorf("%v with %v: %v, want %v", own, theirs, Links(own, theirs), want)
			}
		}
	}
}

func TestMembershipIsByIdentityUnlessThePartitionSaysThisHosts(t *testing.T) {
	p := Partition{Name: "lab", Members: map[string]Membership{"alpha": Limited, "beta": Full}}
	if own, theirs := p.Between("alpha", "beta"); own != Limited || theirs != Full {
		t.Errorf("%v, %v", own, theirs)
	}
	if own, theirs := p.Between("gamma", "delta"); own != None || theirs != None {
		t.Errorf("%v, %v", own, theirs)
	}
	p.Own = Full
	if own, _ := p.Between("gamma", "beta"); own != Full {
		t.Errorf("%v", own)
	}
}

const text = `module fabric 1.0;
require { class rdma_partition { modify }; }
type hpc_t;
type viewer_t;
type lab_part_t;
allow hpc_t lab_part_t : rdma_partition { modify };
`

// permissive lets pass what its policy denies.
type permissive struct{ policy.Decider }

func (permissive) Enforces(string) bool { return false }

func TestDecisions(t *testing.T) {
	pol, err := policy.Parse("lab.te", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	table := NewTable([]Partition{{Name: "lab", PKey: 0x12, Label: "system_u:object_r:lab_part_t"}, {Name: "bare", PKey: 0x13}, {Name: "odd", Label: "system_u:object_r:no_such_t"}})
	const hpc, viewer = "system_u:system_r:hpc_t", "system_u:system_r:viewer_t"
	for _, tc := range []struct {
		what, label, partition, def string
		by                          policy.Decider
		kind                        error // nil: it may
		words                       string
	}{
		{"allowed", hpc, "lab", "", pol, nil, ""},
		{"by its default label", "", "lab", hpc, pol, nil, ""},
		{"not allowed", viewer, "lab", hpc, pol, ErrLabel, "policy lab.te"},
		{"by its default label, not allowed", "", "lab", viewer, pol, ErrLabel, viewer},
		{"without any label", "", "lab", "", pol, ErrNoPolicy, "label (none)"},
		{"a label that the policy does not know", "system_u:system_r:who_t", "lab", "", pol, ErrNoPolicy, "who_t"},
		{"a partition whose label it does not know", hpc, "odd", "", pol, ErrNoPolicy, "no_such_t"},
		{"a partition without a label", viewer, "bare", "", pol, nil, ""},
		{"no policy", hpc, "lab", "", nil, ErrNoPolicy, ""},
		{"no such partition", hpc, "none", "", pol, ErrUnknown, "none"},
		{"permissive, allowed", hpc, "lab", "", permissive{pol}, nil, ""},
		{"permissive, no such partition", hpc, "none", "", permissive{pol}, ErrUnknown, ""},
	} {
		var p Published
		p.Publish(&Snapshot{Table: table, Decider: tc.by, Default: tc.def})
		err := p.MayUse(tc.label, tc.partition)
		var d *Denied
		if (err == nil) != (tc.kind == nil) || err != nil && (!errors.Is(err, tc.kind) || !errors.As(err, &d) || !strings.Contains(err.Error(), tc.words)) {
			t.Errorf("%s: %v; want %v with %q", tc.what, err, tc.kind, tc.words)
		}
	}
	var passed []*Denied
	p := Published{Permitted: func(d *Denied) { passed = append(passed, d) }}
	if err := p.MayUse(hpc, "lab"); !errors.Is(err, ErrUnknown) {
		t.Errorf("before anything is published: %v", err)
	}
	p.Publish(&Snapshot{Table: table, Decider: permissive{pol}})
	if err := p.MayUse(viewer, "lab"); err != nil || len(passed) != 1 || passed[0].Label != viewer {
		t.Errorf("permissive: %v, and was told %v", err, passed)
	}
	if why, may := p.Now().Why(viewer, "lab"); !may || !strings.Contains(why, viewer) {
		t.Errorf("%q, %v", why, may)
	}
}

func TestHostsTalkWhereThereIsALink(t *testing.T) {
	var p Published
	p.Publish(&Snapshot{Table: NewTable([]Partition{{Name: "lab"}}), Links: func(partition, peer string) bool { return partition == "lab" && peer == "beta" }})
	if err := p.MayTalk("lab", "beta"); err != nil {
		t.Error(err)
	}
	for peer, kind := range map[string]error{"gamma": ErrMember} {
		if err := p.MayTalk("lab", peer); !errors.Is(err, kind) || !strings.Contains(err.Error(), peer) {
			t.Errorf("%s: %v", peer, err)
		}
	}
	if err := p.MayTalk("none", "beta"); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	p.Publish(&Snapshot{Table: NewTable([]Partition{{Name: "lab"}})})
	if err := p.MayTalk("lab", "beta"); !errors.Is(err, ErrMember) {
		t.Errorf("nobody knows of links: %v", err)
	}
}

// replaced is a decider that is closed by a reload as soon as it is asked, after another was put in its place.
type replaced struct {
	policy.Decider
	reload func()
}

var errClosed = errors.New("it is closed")

func (d replaced) MayModify(string, string) (bool, error) {
	d.reload()
	return false, errClosed
}

// A reload closes what decides about labels while somebody asks it, such as whoever looks at all streams anew: by what is in
// force now, they go on.
func TestNobodyIsDeniedByADeciderThatAReloadHasClosed(t *testing.T) {
	pol, err := policy.Parse("lab.te", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	table := NewTable([]Partition{{Name: "lab", PKey: 0x12, Label: "system_u:object_r:lab_part_t"}})
	var p Published
	p.Publish(&Snapshot{Table: table, Decider: replaced{pol, func() { p.Publish(&Snapshot{Table: table, Decider: pol}) }}})
	if err := p.MayUse("system_u:system_r:hpc_t", "lab"); err != nil {
		t.Error(err)
	}
	p.Publish(&Snapshot{Table: table, Decider: replaced{pol, func() { p.Publish(&Snapshot{Table: table, Decider: pol}) }}})
	if err := p.MayUse("system_u:system_r:viewer_t", "lab"); !errors.Is(err, ErrLabel) {
		t.Errorf("whom what is in force denies: %v", err)
	}
}
