package config

import (
	"os/user"
	"reflect"
	"strings"
	"testing"
)

const peersOfULPs = "peers:\n  - {name: beta, address: 127.0.0.2, protection: loopback}\n  - {name: bet, address: 127.0.0.3, protection: loopback}\n"

func TestULPsAreReadAndSayWhatTheyMay(t *testing.T) {
	known, err := user.LookupId("1") // this host's name of it
	if err != nil {
		t.Fatal(err)
	}
	c, err := Load(write(t, t.TempDir(), "ironwarp.yaml", peersOfULPs+`ulps:
  - {name: backup, users: [1001, `+known.Username+`], groups: [2000], trust: S-LT, limits: {streams: 8, memory: 64MiB, attachments: 2}, peers: [bet], exports: [beta/docs, beta/docs]}
  - {name: admins, groups: [2001], privileged: true}
  - {name: more, users: ["1003"], groups: [2002], peers: [beta]}
`), true)
	if err != nil {
		t.Fatal(err)
	}
	u := c.ULPs[0]
	u.Origin = Pos{}
	want := ULP{Name: "backup", Users: []Account{{1001, "1001"}, {1, known.Username}}, Groups: []Account{{2000, "2000"}}, Trust: "S-LT",
		Limits: Quota{Streams: 8, Bytes: 64 << 20}, Attachments: 2, Peers: []string{"bet"}, Exports: []string{"beta/docs"}}
	if !reflect.DeepEqual(u, want) {
		t.Errorf("\n got %+v\nwant %+v", u, want)
	}
	for _, tc := range []struct {
		peer, export string
		use, attach  bool
	}{{"beta", "docs", true, true}, {"beta", "other", true, false}, {"bet", "any", true, true}, {"be", "docs", false, false}, {"beta", "doc", true, false}, {"beta", "docs/x", true, false}} {
		if use, attach := u.MayUse(tc.peer), u.MayAttach(tc.peer, tc.export); use != tc.use || attach != tc.attach {
			t.Errorf("%s/%s: may use %v, attach %v", tc.peer, tc.export, use, attach)
		}
	}
	if p := c.ULPs[1]; !p.MayUse("any") || !p.MayAttach("any", "any") || p.Attachments != DefaultAttachments {
		t.Errorf("%+v", p)
	}
	for _, tc := range []struct {
		name string
		uid  uint32
		gids []uint32
		want string
	}{
		{"by user", 1001, nil, "backup"},
		{"the user counts before the groups", 1003, []uint32{2000, 2001}, "more"},
		{"by group", 4000, []uint32{100, 2002}, "more"},
		{"the first in the file of two groups", 4000, []uint32{2002, 2001}, "admins"},
		{"nobody", 4000, []uint32{100}, ""},
		{"a group's number is no user's", 2001, []uint32{1001}, ""},
		{"one whom the kernel cannot name", UnmappedID, []uint32{2000}, ""},
		{"a group that the kernel cannot name", 4000, []uint32{UnmappedID}, ""},
	} {
		u, ok := c.ULPOf(tc.uid, tc.gids)
		if u.Name != tc.want || ok != (tc.want != "") {
			t.Errorf("%s: %q", tc.name, u.Name)
		}
	}
}

func TestFaultsOfULPs(t *testing.T) {
	for _, tc := range []struct{ name, ulps, want string }{
		{"no name", "{users: [1001], peers: [beta]}", "ironwarp.yaml:5:5: a ULP without name"},
		{"nobody", "{name: x, peers: [beta]}", "ULP x without users and groups"},
		{"negative user", "{name: x, users: [-1], peers: [beta]}", `user "-1" does not exist on this host`},
		{"user beyond 32 bits", "{name: x, users: [4294967296], peers: [beta]}", `user "4294967296" does not exist`},
		{"the number that means none", "{name: x, users: [4294967295], peers: [beta]}", `user "4294967295" is nobody`},
		{"one whom the kernel cannot name", "{name: x, users: [65534], peers: [beta]}", "for anybody whom it cannot name"},
		{"a group that the kernel cannot name", "{name: x, groups: [65534], peers: [beta]}", "for anybody whom it cannot name"},
		{"root", "{name: x, users: [root], peers: [beta]}", `user "root" is root, who may do everything as it is`},
		{"a list in a list", "{name: x, users: [[1]], peers: [beta]}", "user is a list; write the name of a user or its number"},
		{"nothing", "{name: x, users: [1001]}", "ULP x may use no peer"},
		{"too much", "{name: x, users: [1001], privileged: true, peers: [beta]}", "ULP x is privileged beside peers or exports"},
		{"unknown peer", "{name: x, users: [1001], peers: [gamma]}", "ULP x may use peer gamma, which is not configured"},
		{"export of an unknown peer", "{name: x, users: [1001], exports: [gamma/docs]}", "ULP x may attach gamma/docs, but no peer gamma is configured"},
		{"no export", "{name: x, users: [1001], exports: [beta]}", `export "beta" is not PEER/EXPORT`},
		{"bad export", "{name: x, users: [1001], exports: [beta/../x]}", `export "beta/../x" is not a valid name`},
		{"a service's name", "{name: exports, users: [1001], peers: [beta]}", `ULP name "exports" is the name of a service`},
		{"a path", "{name: ../x, users: [1001], peers: [beta]}", `ULP name "../x" is not a valid name`},
		{"long", "{name: seventeen-letters, users: [1001], peers: [beta]}", "has 17 bytes; 16 are allowed"},
		{"trust", "{name: x, users: [1001], peers: [beta], trust: all}", `trust is "all"; allowed: NS-NT, NS-RT, S-NT, S-LT, S-T`},
		{"limits", "{name: x, users: [1001], peers: [beta], limits: {attachments: 0}}", `attachments is 0; allowed: 1 to 1024`},
		{"unknown limit", "{name: x, users: [1001], peers: [beta], limits: {disks: 1}}", `unknown key "disks" in limits`},
		{"more than all", "{name: x, users: [1001], peers: [beta], limits: {memory: 2GiB}}", "ULP x may have 2GiB of memory, and all together 1GiB"},
		{"unknown key", "{name: x, user: [1001], peers: [beta]}", `unknown key "user" in a ULP; did you mean "users"?`},
		{"twice", "{name: x, users: [1001], peers: [beta]}\n  - {name: x, users: [1002], peers: [beta]}", "ironwarp.yaml:6:5: ULP x is already declared at"},
		{"one user twice", "{name: x, users: [1], peers: [beta]}\n  - {name: y, users: [\"1\"], peers: [beta]}", "user 1 is of ULP x already"},
		{"one group twice", "{name: x, groups: [1], peers: [beta]}\n  - {name: y, groups: [1], peers: [beta]}", "group 1 is of ULP x already"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Load(write(t, t.TempDir(), "ironwarp.yaml", peersOfULPs+"ulps:\n  - "+tc.ulps+"\n"), true)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

// TestUnknownUserDisablesItsULPAlone: a user who was removed from the host, or whom a
// directory does not tell now, stops nobody else's ULP and no daemon. Whoever is named
// beside is nobody, too, and not another ULP's by a group.
func TestUnknownUserDisablesItsULPAlone(t *testing.T) {
	c, err := Load(write(t, t.TempDir(), "ironwarp.yaml", peersOfULPs+"ulps:\n"+
		"  - {name: gone, users: [no-such-user, 1001], peers: [beta]}\n"+
		"  - {name: groups, groups: [no-such-group], peers: [beta]}\n"+
		"  - {name: here, groups: [1001], peers: [beta]}\n"), true)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"gone": `ironwarp.yaml:5:26: user "no-such-user" does not exist on this host`, "groups": `group "no-such-group" does not exist on this host`, "here": ""} {
		u, ok := c.ULP(name)
		if !ok || (u.Disabled != nil) != (want != "") || want != "" && !strings.Contains(u.Disabled.Error(), want) {
			t.Errorf("ULP %s: %v, %v", name, ok, u.Disabled)
		}
	}
	if u, ok := c.ULPOf(1001, []uint32{1001}); ok {
		t.Errorf("a user of a disabled ULP is of %s", u.Name)
	}
	if u, ok := c.ULPOf(1002, []uint32{1001}); !ok || u.Name != "here" {
		t.Errorf("a user of another ULP is of %q", u.Name)
	}
}
