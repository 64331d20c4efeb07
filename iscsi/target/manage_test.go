package target_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi"
	finder "github.com/ironwarp/ironwarp/iscsi/initiator"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

// portals serves targets that a test sets.
func portals(t *testing.T, cfg target.Config) (*target.Server, string) {
	t.Helper()
	srv := target.NewServer(cfg)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return srv, ln.Addr().String()
}

func discovered(t *testing.T, address, initiator string, c *chap.Credentials) (names []string, err error) {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	all, err := finder.Targets(ctx, nc, finder.Config{Initiator: initiator, CHAP: c})
	for _, d := range all {
		names = append(names, d.Name)
		if len(d.Portals) != 1 || d.Portals[0] != address+",1" {
			t.Errorf("%s is at %v", d.Name, d.Portals)
		}
	}
	return names, err
}

// TestDiscoveryShowsTheTargetsThatMayBeUsed: many names take several PDUs, and each initiator sees
// its own.
func TestDiscoveryShowsTheTargetsThatMayBeUsed(t *testing.T) {
	srv, address := portals(t, target.Config{PeerOf: func(net.Conn) string { return "beta" }})
	const n = 300
	for i := range n {
		mine := i%2 == 0
		if err := srv.Set(&target.Target{Name: fmt.Sprintf("iqn.x:%03d-%s", i, strings.Repeat("a", 60)), Device: &lu.Device{}, Admits: func(o target.Origin, initiator string) bool {
			return mine && o.Peer == "beta" && o.Remote.Addr().IsLoopback() && initiator == "iqn.x:me"
		}}); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := discovered(t, address, "iqn.x:me", nil); err != nil || len(names) != n/2 || !strings.HasPrefix(names[1], "iqn.x:002-") {
		t.Errorf("%d, %v", len(names), err)
	}
	if names, err := discovered(t, address, "iqn.x:other", nil); err != nil || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := discovered(t, address, "not a name", nil); !errors.Is(err, finder.ErrRefused) {
		t.Errorf("%v", err)
	}
	// The portal asks nobody who only looks around, so it can't prove that it knows a secret.
	if _, err := discovered(t, address, "iqn.x:me", &chap.Credentials{Name: "a", Secret: []byte("secret of the initiator"), OwnSecret: []byte("secret of the target")}); !errors.Is(err, finder.ErrTarget) {
		t.Errorf("%v", err)
	}
}

// newClient connects.
func newClient(t *testing.T, address string) *client {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(30 * time.Second))
	return &client{t: t, nc: nc, cmdSN: 1}
}

// login sends a login request and returns the status, and the client.
func login(t *testing.T, address string) (*client, iscsi.LoginStatus) {
	t.Helper()
	c := newClient(t, address)
	q := iscsi.LoginRequest{Transit: true, CSG: iscsi.Operational, NSG: iscsi.FullFeature, ISID: [6]byte{0x80, 7}, CmdSN: 1}
	var h iscsi.BHS
	q.Put(&h)
	c.send(&h, []byte("InitiatorName=iqn.x:i\x00TargetName="+targetName+"\x00"))
	h, _ = c.receive()
	r, err := iscsi.ParseLoginResponse(&h)
	if err != nil {
		t.Fatal(err)
	}
	return c, r.Status
}

// TestTargetIsChangedBesideItsSessions: one without a device is there, and for later; sessions go on
// whatever their target is set to, until they are ended.
func TestTargetIsChangedBesideItsSessions(t *testing.T) {
	began := time.Now()
	srv, address := portals(t, target.Config{})
	set := func(x *target.Target) {
		t.Helper()
		x.Name = targetName
		if err := srv.Set(x); err != nil {
			t.Fatal(err)
		}
	}
	if _, st := login(t, address); st != iscsi.LoginNotFound {
		t.Errorf("%#x", st)
	}
	set(&target.Target{})
	if _, st := login(t, address); st != iscsi.LoginUnavailable {
		t.Errorf("%#x", st)
	}
	if names, err := discovered(t, address, "iqn.x:i", nil); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
	d := device(t, unit{size: 1 << 20})
	set(&target.Target{Device: d})
	c, st := login(t, address)
	if st != iscsi.LoginOK {
		t.Fatalf("%#x", st)
	}
	read := func() {
		t.Helper()
		k := iscsi.Command{Final: true, Read: true, ITT: 9, EDTL: 512}
		k.CDB[0], k.CDB[8] = scsi.Read10, 1
		c.command(k, nil)
		if h, data := c.receive(); h.Opcode() != iscsi.OpDataIn || len(data) != 512 {
			t.Fatalf("%v", h.Opcode())
		}
	}
	ua := iscsi.Command{Final: true, ITT: 8}
	c.command(ua, nil) // TEST UNIT READY takes the unit attention
	c.receive()
	read()
	set(&target.Target{Device: d, Admits: func(target.Origin, string) bool { return false }})
	read()
	if _, st := login(t, address); st != iscsi.LoginForbidden {
		t.Errorf("%#x", st)
	}
	all := srv.Sessions()
	if len(all) != 1 || all[0].Initiator != "iqn.x:i" || all[0].Target != targetName || all[0].IO.Reads != 2 || all[0].IO.ReadBytes != 1024 || all[0].IO.Errors != 1 || all[0].Origin.Local.String() != address {
		t.Errorf("%+v", all)
	}
	if i, ok := srv.Info(targetName); !ok || i.Logins != 1 || i.Refused != 2 || i.LUNs[0].ReadBytes != 1024 {
		t.Errorf("%+v", i)
	} else if l := i.Latency[0]; l[block.OpRead].Count() != i.LUNs[0].Reads || l[block.OpRead].Sum <= 0 || l[block.OpRead].Sum > time.Since(began) || l[block.OpWrite].Count() != 0 {
		t.Errorf("what its commands took: %+v", l)
	}
	if ended, _ := srv.End(func(i target.SessionInfo) bool { return i.Target != targetName }); len(ended) != 0 {
		t.Errorf("%+v", ended)
	}
	ended, over := srv.End(func(i target.SessionInfo) bool { return i.TSIH == all[0].TSIH })
	if len(ended) != 1 {
		t.Errorf("%+v", ended)
	}
	c.event(iscsi.EventLogoutRequest)
	if r := c.logout(iscsi.Logout{Reason: iscsi.CloseSession}); r != iscsi.LogoutClosed {
		t.Errorf("%d", r)
	}
	c.ended()
	<-over[0]
	if n := len(srv.Sessions()); n != 0 {
		t.Errorf("%d sessions", n)
	}
	srv.Remove(targetName)
	if _, st := login(t, address); st != iscsi.LoginNotFound {
		t.Errorf("%#x", st)
	}
}

// TestTargetThatHasMoved: initiators are sent to the other place, for a time or for good; discovery, and whoever may not see the target, is told nothing of it.
func TestTargetThatHasMoved(t *testing.T) {
	other := serve(t, target.Config{}, nil, unit{size: 1 << 20})
	srv, address := portals(t, target.Config{})
	for moved, want := range map[bool]iscsi.LoginStatus{false: iscsi.LoginMovedTemporarily, true: iscsi.LoginMovedPermanently} {
		x := &target.Target{Name: targetName, Redirect: other.address, Moved: moved, Admits: func(o target.Origin, initiator string) bool { return initiator != "iqn.x:stranger" }}
		if err := srv.Set(x); err != nil {
			t.Fatal(err)
		}
		for name, st := range map[string]iscsi.LoginStatus{"iqn.x:i": want, "iqn.x:stranger": iscsi.LoginForbidden} {
			c := newClient(t, address)
			var h iscsi.BHS
			q := iscsi.LoginRequest{Transit: true, CSG: iscsi.Security, NSG: iscsi.Operational, ISID: [6]byte{0x80, 7}, CmdSN: 1}
			q.Put(&h)
			c.send(&h, []byte("InitiatorName="+name+"\x00TargetName="+targetName+"\x00AuthMethod=None\x00"))
			h, text := c.receive()
			r, err := iscsi.ParseLoginResponse(&h)
			if told := string(text) == "TargetAddress="+other.address+"\x00"; err != nil || r.Status != st || told != (st == want) {
				t.Errorf("%s: %#x, %q, %v", name, r.Status, text, err)
			}
			c.ended()
		}
		if names, err := discovered(t, address, "iqn.x:i", nil); err != nil || len(names) != 1 {
			t.Errorf("%v, %v", names, err)
		}
		// libiscsi 1.19 follows what has moved for a time, and says so otherwise.
		if out, err := tool(t, "iscsi-inq")("iscsi://" + address + "/" + targetName + "/0"); (err == nil) == moved || moved != strings.Contains(out, "Target moved permanently") {
			t.Errorf("libiscsi: %v\n%s", err, out)
		}
	}
}
