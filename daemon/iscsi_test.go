package daemon

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/scsi"
)

const diskIQN = "iqn.2026-01.org.example:disks"

// initiator is a session with a target, of commands one after the other.
type initiator struct {
	t      *testing.T
	nc     net.Conn
	cmdSN  uint32
	statSN uint32
}

// login logs in to LUNs at a port of this host, with further keys, and returns the status of that.
func login(t *testing.T, port uint16, name string, keys ...string) (*initiator, iscsi.LoginStatus) {
	t.Helper()
	nc, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, iscsi.LoginUnavailable
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(waitTime))
	x := &initiator{t: t, nc: nc, cmdSN: 1}
	q := iscsi.LoginRequest{Transit: true, CSG: iscsi.Operational, NSG: iscsi.FullFeature, ISID: [6]byte{0x80, 1}, CmdSN: 1}
	var h iscsi.BHS
	q.Put(&h)
	x.send(&h, []byte(strings.Join(append(keys, "InitiatorName="+name, "TargetName="+diskIQN, ""), "\x00")))
	h, _, err = x.receive()
	if err != nil {
		return nil, iscsi.LoginUnavailable
	}
	r, err := iscsi.ParseLoginResponse(&h)
	if err != nil {
		t.Fatal(err)
	}
	return x, r.Status
}

// mustLogin is login once the target is there. The unit attention of LUN 0 is taken.
func mustLogin(t *testing.T, port uint16, name string, keys ...string) *initiator {
	t.Helper()
	var x *initiator
	eventually(t, "the initiator is logged in", func() bool {
		var st iscsi.LoginStatus
		x, st = login(t, port, name, keys...)
		return st == iscsi.LoginOK
	})
	x.do(0, nil, 0, scsi.TestUnitReady)
	return x
}

func (x *initiator) send(h *iscsi.BHS, data []byte) {
	h.SetLengths(0, len(data))
	_, _ = x.nc.Write(append(append(h[:], data...), make([]byte, iscsi.Pad(len(data)))...)) // what reads tells
}

func (x *initiator) receive() (h iscsi.BHS, data []byte, err error) {
	if _, err := io.ReadFull(x.nc, h[:]); err != nil {
		return h, nil, err
	}
	data = make([]byte, h.DataLen()+iscsi.Pad(h.DataLen()))
	_, err = io.ReadFull(x.nc, data)
	return h, data[:h.DataLen()], err
}

// do carries out a command, with data for the unit, or in bytes from it. With CHECK CONDITION it returns the
// sense data, and 0xff at the end of the session.
func (x *initiator) do(lun byte, out []byte, in uint32, cdb ...byte) (scsi.Status, []byte) {
	x.t.Helper()
	k := iscsi.Command{Final: true, Attr: iscsi.Simple, ITT: x.cmdSN, CmdSN: x.cmdSN, ExpStatSN: x.statSN, Read: in > 0, Write: out != nil, EDTL: in + uint32(len(out)), LUN: [8]byte{0, lun}}
	copy(k.CDB[:], cdb)
	x.cmdSN++
	var h iscsi.BHS
	k.Put(&h)
	x.send(&h, out)
	var got []byte
	for {
		h, data, err := x.receive()
		if err != nil {
			return 0xff, nil
		}
		x.statSN = binary.BigEndian.Uint32(h[24:]) + 1
		switch h.Opcode() {
		case iscsi.OpAsync: // the end of the session is announced
		case iscsi.OpDataIn:
			got = append(got, data...)
			if h[1]&1 != 0 { // with status
				return scsi.Status(h[3]), got
			}
		case iscsi.OpResponse:
			if scsi.Status(h[3]) == scsi.CheckCondition {
				got, _ = iscsi.ParseSense(data)
			}
			return scsi.Status(h[3]), got
		default:
			x.t.Fatalf("%v to a command", h.Opcode())
		}
	}
}

// says wants TEST UNIT READY to end with an additional sense code, 0: with GOOD.
func (x *initiator) says(lun byte, want scsi.Code) {
	x.t.Helper()
	st, b := x.do(lun, nil, 0, scsi.TestUnitReady)
	if s, _ := scsi.ParseSense(b); st == 0xff || s.Code != want || (st == scsi.Good) != (want == 0) {
		x.t.Errorf("LUN %d: status %#x, sense %#x, want %#x", lun, st, s.Code, want)
	}
}

func (x *initiator) write(lun byte, block []byte) scsi.Status {
	st, _ := x.do(lun, block, 0, scsi.Write10, 0, 0, 0, 0, 0, 0, 0, byte(len(block)/512))
	return st
}

// reserve registers with a key, kept over restarts, and reserves the unit for writing.
func (x *initiator) reserve(key uint64) {
	x.t.Helper()
	list := make([]byte, 24)
	binary.BigEndian.PutUint64(list[8:], key)
	list[20] = 1 // APTPL
	st, _ := x.do(0, list, 0, scsi.PersistentReserveOut, scsi.Register, 0, 0, 0, 0, 0, 0, 24)
	binary.BigEndian.PutUint64(list, key)
	list[20] = 0
	if st2, _ := x.do(0, list, 0, scsi.PersistentReserveOut, scsi.Reserve, 1, 0, 0, 0, 0, 0, 24); st != scsi.Good || st2 != scsi.Good {
		x.t.Fatalf("not reserved: %v, %v", st, st2)
	}
}

func (x *initiator) keys() []byte {
	_, keys := x.do(0, nil, 64, scsi.PersistentReserveIn, scsi.ReadKeys, 0, 0, 0, 0, 0, 0, 64)
	return keys
}

// disks is a target of a host, for peer alpha, and its port.
func (h *host) disks(luns ...api.LUNSpec) (port uint16) {
	h.t.Helper()
	port = iwarptest.FreePort(h.t)
	v, err := h.api.AddTarget(h.t.Context(), api.TargetSpec{Name: "disks", IQN: diskIQN, Port: port, Peers: []string{"alpha"}, LUNs: luns})
	if err != nil {
		h.t.Fatal(err)
	}
	if v.State != api.TargetReady || len(v.Portals) != 1 {
		h.t.Logf("not ready at once: %+v", v)
	}
	return port
}

func (h *host) target() api.Target {
	h.t.Helper()
	v, err := h.api.Target(h.t.Context(), "disks")
	if err != nil {
		h.t.Fatal(err)
	}
	return v
}

// TestForeignInitiatorsUseADisk: libiscsi and QEMU find, read and write LUNs of the daemon, and its own
// discovery finds them.
func TestForeignInitiatorsUseADisk(t *testing.T) {
	for _, tool := range []string{"iscsi-ls", "iscsi-inq", "qemu-io"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs libiscsi-bin and qemu-block-extra: %v", err)
		}
	}
	alpha, beta, image := pair(t, 1<<20)
	path := beta.image("other.img", 4<<20)
	port := beta.disks(api.LUNSpec{Path: path, BlockSize: 4096}, api.LUNSpec{Number: 1, Export: "disk", ReadOnly: true})
	mustLogin(t, port, "iqn.x:i").nc.Close()
	at := fmt.Sprintf("127.0.0.1:%d", port)
	run := func(works bool, words string, name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		if (err == nil) != works || !strings.Contains(string(out), words) {
			t.Errorf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	run(true, "Target:"+diskIQN+" Portal:"+at+",1", "iscsi-ls", "-s", "iscsi://"+at)
	run(true, "Vendor:IronWarp", "iscsi-inq", "iscsi://"+at+"/"+diskIQN+"/1")
	run(true, "wrote 65536", "qemu-io", "-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "flush", "-c", "read -P 0x5a 1M 64k", "iscsi://"+at+"/"+diskIQN+"/0")
	run(false, "", "qemu-io", "-f", "raw", "-c", "write -P 0x5a 0 4k", "iscsi://"+at+"/"+diskIQN+"/1")
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b[1<<20:1<<20+64<<10], bytes.Repeat([]byte{0x5a}, 64<<10)) {
		t.Errorf("the file has not what was written: %v", err)
	}
	if b, err := os.ReadFile(image); err != nil || bytes.ContainsRune(b, 0x5a) {
		t.Errorf("a LUN that is read-only was written: %v", err)
	}
	found, err := alpha.api.Discover(t.Context(), api.DiscoverRequest{Portal: at})
	if err != nil || len(found) != 1 || found[0].IQN != diskIQN || found[0].Portals[0] != at+",1" {
		t.Errorf("%+v, %v", found, err)
	}
	v := beta.target()
	if v.State != api.TargetReady || v.Logins < 4 || v.Units[0].IO.WriteBytes < 64<<10 || v.Units[0].IO.ReadBytes < 64<<10 || v.Units[0].UUID == "" || v.Units[1].Size != 1<<20 || v.Units[1].IO.Writes != 0 {
		t.Errorf("%+v", v)
	}
	if _, err := alpha.api.Discover(t.Context(), api.DiscoverRequest{Portal: "192.0.2.77"}); err == nil || !strings.Contains(err.Error(), "not the address of a configured peer") {
		t.Errorf("a portal of no peer: %v", err)
	}
}

// TestDiskThatIsALUNIsReadOnlyForPeers: so no peer writes past reservations, whatever initiators hold.
func TestDiskThatIsALUNIsReadOnlyForPeers(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	if _, err := beta.api.SetExport(t.Context(), "disk", api.ExportChange{Writers: new("shared")}); err != nil {
		t.Fatal(err)
	}
	c := alpha.attach("disk")
	ok(t, c, cmdWrite, 8192, 512, bytes.Repeat([]byte{1}, 512))
	lun := api.LUNSpec{Export: "disk"}
	_, err := beta.api.AddTarget(t.Context(), api.TargetSpec{Name: "disks", IQN: diskIQN, Peers: []string{"alpha"}, LUNs: []api.LUNSpec{lun}})
	says(t, err, api.CodeInUse, "peer alpha has it attached for writing")
	// Whoever edits files is asked nothing.
	port := iwarptest.FreePort(t)
	beta.write("targets.d/disks.yaml", fmt.Sprintf("{name: disks, iqn: \"%s\", port: %d, peers: [alpha], luns: [{number: 0, export: disk}]}", diskIQN, port))
	if _, err := beta.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	x := mustLogin(t, port, "iqn.x:i")
	x.reserve(7)
	mine := bytes.Repeat([]byte{2}, 512)
	if st := x.write(0, mine); st != scsi.Good {
		t.Fatalf("%v", st)
	}
	eventually(t, "the peer's write fails", func() bool {
		e, _ := do(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{3}, 512))
		return e != 0
	})
	c.Close()
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	c = alpha.attach("disk") // which gets it for reading only
	if got := ok(t, c, cmdRead, 0, 512, nil); !bytes.Equal(got, mine) {
		t.Errorf("the peer reads %x", got[:8])
	}
	if e, _ := do(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{3}, 512)); e != nbdEPERM {
		t.Errorf("a write past a reservation: error %d", e)
	}
	if b, err := os.ReadFile(image); err != nil || !bytes.Equal(b[:512], mine) {
		t.Errorf("the disk has %x: %v", b[:8], err)
	}
	if e := beta.status().Exports[0]; !e.LUN {
		t.Errorf("%+v", e)
	}
	_, err = beta.api.ResizeExport(t.Context(), "disk", api.ResizeRequest{Size: 4096, Shrink: true})
	says(t, err, api.CodeInUse, "is a LUN")
}

// TestReservationsOutliveARestart, and a LUN that is taken out forgets them. Another disk at a LUN's
// path is not offered as the first.
func TestReservationsOutliveARestart(t *testing.T) {
	_, beta, _ := pair(t, 1<<20)
	path := beta.image("other.img", 1<<20)
	port := beta.disks(api.LUNSpec{Path: path})
	x := mustLogin(t, port, "iqn.x:i")
	x.reserve(0x1122)
	beta.stop()
	if st, _ := x.do(0, nil, 0, scsi.TestUnitReady); st != 0xff {
		t.Errorf("a session outlives the daemon: %v", st)
	}
	beta.start()
	other := mustLogin(t, port, "iqn.x:other")
	if st := other.write(0, make([]byte, 512)); st != scsi.ReservationConflict {
		t.Errorf("a write past the reservation: %v", st)
	}
	x = mustLogin(t, port, "iqn.x:i")
	if st := x.write(0, make([]byte, 512)); st != scsi.Good || !bytes.Contains(x.keys(), []byte{0x11, 0x22}) {
		t.Errorf("%v, keys %x", st, x.keys())
	}
	// Another file stands there.
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	beta.image("other.img", 1<<20)
	if _, err := beta.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other disk is noticed", func() bool { return beta.target().State == api.TargetProblem })
	if _, st := login(t, port, "iqn.x:i"); st != iscsi.LoginUnavailable {
		t.Errorf("%#x", st)
	}
	if v := beta.target(); v.Problem == nil || !strings.Contains(v.Problem.Message, "another one") {
		t.Errorf("%+v", v)
	}
	if err := os.Rename(path+".old", path); err != nil {
		t.Fatal(err)
	}
	if _, err := beta.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if x = mustLogin(t, port, "iqn.x:i"); !bytes.Contains(x.keys(), []byte{0x11, 0x22}) {
		t.Errorf("keys %x", x.keys())
	}
	if _, err := beta.api.RemoveLUN(t.Context(), "disks", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := beta.api.AddLUN(t.Context(), "disks", api.LUNSpec{Path: path}); err != nil {
		t.Fatal(err)
	}
	if x = mustLogin(t, port, "iqn.x:i"); len(x.keys()) != 8 {
		t.Errorf("keys %x", x.keys())
	}
}

// TestLUNsComeAndGoBesideSessions: an initiator that is logged in is told what has changed, and goes on with
// the rest.
func TestLUNsComeAndGoBesideSessions(t *testing.T) {
	_, beta, _ := pair(t, 1<<20)
	beta.export("more", beta.image("more.img", 1<<20), false)
	port := beta.disks(api.LUNSpec{Path: beta.image("other.img", 1<<20)})
	x := mustLogin(t, port, "iqn.x:i")
	x.reserve(0x55)
	if _, err := beta.api.AddLUN(t.Context(), "disks", api.LUNSpec{Number: 1, Export: "more"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the LUN is there", func() bool { return beta.target().Units[1].State == api.TargetReady })
	x.says(0, scsi.ReportedLUNsChanged)
	x.says(1, scsi.PowerOnOrReset)
	if st := x.write(1, make([]byte, 512)); st != scsi.Good {
		t.Errorf("%v", st)
	}
	if _, err := beta.api.ResizeExport(t.Context(), "more", api.ResizeRequest{Size: 2 << 20}); err != nil {
		t.Fatal(err)
	}
	x.says(1, scsi.CapacityHasChanged)
	beta.write("targets.d/disks.yaml", fmt.Sprintf("{name: disks, iqn: \"%s\", port: %d, peers: [alpha], luns: [{number: 0, path: other.img}, {number: 1, export: more, read_only: true}]}", diskIQN, port))
	if _, err := beta.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the LUN is read-only", func() bool {
		st, sense := x.do(1, make([]byte, 512), 0, scsi.Write10, 0, 0, 0, 0, 0, 0, 0, 1)
		s, _ := scsi.ParseSense(sense)
		return st == scsi.CheckCondition && s.Code == scsi.WriteProtected
	})
	if _, err := beta.api.RemoveLUN(t.Context(), "disks", 1); err != nil {
		t.Fatal(err)
	}
	x.says(1, scsi.LogicalUnitNotSupported)
	x.says(0, scsi.ReportedLUNsChanged)
	x.says(0, 0)
	if st := x.write(0, make([]byte, 512)); st != scsi.Good || !bytes.Contains(x.keys(), []byte{0x55}) {
		t.Errorf("the other LUN: %v, keys %x", st, x.keys())
	}
	if s := beta.status().TargetSessions; len(s) != 1 {
		t.Errorf("%+v", s)
	}
}

// TestLUNThatMayBeErased, and one that may not be.
func TestLUNThatMayBeErased(t *testing.T) {
	_, beta, _ := pair(t, 1<<20)
	path := beta.image("other.img", 1<<20)
	port := beta.disks(api.LUNSpec{Path: path, Sanitize: true}, api.LUNSpec{Number: 1, Path: beta.image("kept.img", 1<<20)})
	x := mustLogin(t, port, "iqn.x:i")
	x.says(1, scsi.PowerOnOrReset)
	full := bytes.Repeat([]byte{0xab}, 512)
	for lun := range byte(2) {
		if st := x.write(lun, full); st != scsi.Good {
			t.Fatalf("LUN %d: %v", lun, st)
		}
	}
	if st, sense := x.do(1, nil, 0, scsi.Sanitize, scsi.BlockErase); st != scsi.CheckCondition {
		t.Errorf("a LUN that may not be erased: %v", st)
	} else if s, _ := scsi.ParseSense(sense); s.Code != scsi.InvalidOperationCode {
		t.Errorf("%+v", s)
	}
	if st, _ := x.do(0, nil, 0, scsi.Sanitize, scsi.BlockErase); st != scsi.Good {
		t.Errorf("%v", st)
	}
	if b, err := os.ReadFile(path); err != nil || bytes.ContainsRune(b, 0xab) || len(b) != 1<<20 {
		t.Errorf("the file still has what was written: %v", err)
	}
	if !beta.target().LUNs[0].Sanitize || beta.target().LUNs[1].Sanitize {
		t.Errorf("%+v", beta.target().LUNs)
	}
}

// TestTargetIsRedirected: its sessions end, and its initiators are sent elsewhere.
func TestTargetIsRedirected(t *testing.T) {
	_, beta, _ := pair(t, 1<<20)
	port := beta.disks(api.LUNSpec{Path: beta.image("other.img", 1<<20)})
	x := mustLogin(t, port, "iqn.x:i")
	for more, want := range map[string]iscsi.LoginStatus{"": iscsi.LoginMovedTemporarily, ", redirect_permanent: true": iscsi.LoginMovedPermanently} {
		beta.write("targets.d/disks.yaml", fmt.Sprintf("{name: disks, iqn: \"%s\", port: %d, peers: [alpha], luns: [{number: 0, path: other.img}], redirect: \"192.0.2.9:3260\"%s}", diskIQN, port, more))
		if _, err := beta.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st, _ := x.do(0, nil, 0, scsi.TestUnitReady); st != 0xff {
			t.Errorf("the session goes on: %v", st)
		}
		if _, st := login(t, port, "iqn.x:i"); st != want {
			t.Errorf("%#x", st)
		}
		if v := beta.target(); v.State != api.TargetRedirecting || v.Redirect != "192.0.2.9:3260" || v.RedirectPermanent != (more != "") {
			t.Errorf("%+v", v)
		}
	}
}

// onlySession waits until the sessions that have ended are gone from the status, too, and returns the one that is left.
func (h *host) onlySession() api.TargetSession {
	h.t.Helper()
	var all []api.TargetSession
	eventually(h.t, "one session is left", func() bool {
		all = h.status().TargetSessions
		return len(all) == 1
	})
	return all[0]
}

// TestReloadLeavesSessionsThatMayGoOn: what changes beside them does not end them, and what forbids
// them does.
func TestReloadLeavesSessionsThatMayGoOn(t *testing.T) {
	_, beta, _ := pair(t, 1<<20)
	port := beta.disks(api.LUNSpec{Path: beta.image("other.img", 1<<20)})
	x := mustLogin(t, port, "iqn.x:i")
	declare := func(more string) {
		t.Helper()
		beta.write("targets.d/disks.yaml", fmt.Sprintf("{name: disks, iqn: \"%s\", port: %d, luns: [{number: 0, path: other.img}], %s}", diskIQN, port, more))
		if _, err := beta.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	works := func(what string) {
		t.Helper()
		if st := x.write(0, make([]byte, 512)); st != scsi.Good {
			t.Errorf("%s: %v", what, st)
		}
	}
	beta.export("more", beta.image("more.img", 1<<20), false)
	works("an export came")
	if _, err := beta.api.AddTarget(t.Context(), api.TargetSpec{Name: "second", IQN: diskIQN + "2", Port: port, Peers: []string{"alpha"}}); err != nil {
		t.Fatal(err)
	}
	works("a target came")
	declare("peers: [alpha], alias: x, initiators: [\"iqn.x:i\", \"iqn.x:j\"]")
	works("others were shut out")
	s := beta.status().TargetSessions
	if len(s) != 1 || s[0].Initiator != "iqn.x:i" || s[0].Peer != "alpha" || s[0].Target != "disks" || s[0].IO.Writes != 3 || s[0].InFlight != 0 {
		t.Errorf("%+v", s)
	}
	if _, st := login(t, port, "iqn.x:k"); st != iscsi.LoginForbidden {
		t.Errorf("%#x", st)
	}
	says(t, beta.api.RemoveTarget(t.Context(), "disks", false), api.CodeInUse, "1 sessions")
	declare("peers: [alpha], initiators: [\"iqn.x:j\"]")
	if st, _ := x.do(0, nil, 0, scsi.TestUnitReady); st != 0xff {
		t.Errorf("who is shut out goes on: %v", st)
	}
	x = mustLogin(t, port, "iqn.x:j")
	if _, err := beta.api.EndTargetSession(t.Context(), "ffff"); err == nil {
		t.Error("a session that there is not")
	}
	if _, err := beta.api.EndTargetSession(t.Context(), beta.onlySession().ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a session that was ended does not go on", func() bool {
		st, _ := x.do(0, nil, 0, scsi.TestUnitReady)
		return st == 0xff
	})
	x = mustLogin(t, port, "iqn.x:j")
	declare("insecure_undeclared: true")
	if st, _ := x.do(0, nil, 0, scsi.TestUnitReady); st != 0xff {
		t.Errorf("a peer that is allowed no more goes on: %v", st)
	}
	if _, err := beta.api.RemovePeer(t.Context(), "alpha", true); err != nil {
		t.Fatal(err)
	}
	x = mustLogin(t, port, "iqn.x:j")
	works("a host that is no peer, where that is allowed")
	if s := beta.onlySession(); s.Peer != "" || s.Identity != "" {
		t.Errorf("%+v", s)
	}
	declare("peers: []")
	if _, st := login(t, port, "iqn.x:j"); st == iscsi.LoginOK {
		t.Error("a host that is no peer is let in")
	}
}

// TestErrorRecoveryLevelOfATarget: it is 1 if nobody says otherwise, and what a file says from the next login on. A
// connection that fails at level 2 is shown until its time is over.
func TestErrorRecoveryLevelOfATarget(t *testing.T) {
	_, beta, _ := pair(t, 1<<20)
	port := beta.disks(api.LUNSpec{Path: beta.image("other.img", 1<<20)})
	if l := beta.target().ErrorRecoveryLevel; l == nil || *l != 1 {
		t.Errorf("%v", l)
	}
	for _, c := range []struct {
		file string
		want uint32
	}{{"", 1}, {", error_recovery_level: 0", 0}, {", error_recovery_level: 2", 2}} {
		beta.write("targets.d/disks.yaml", fmt.Sprintf("{name: disks, iqn: \"%s\", port: %d, luns: [{number: 0, path: other.img}], peers: [alpha]%s}", diskIQN, port, c.file))
		if _, err := beta.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		x := mustLogin(t, port, "iqn.x:i", "ErrorRecoveryLevel=2")
		s := beta.status().TargetSessions
		if len(s) != 1 || s[0].Recovery != c.want || s[0].Connections != 1 || s[0].Failed != 0 {
			t.Errorf("%q: %+v", c.file, s)
		}
		x.nc.Close()
		eventually(t, "the connection has ended", func() bool {
			s = beta.status().TargetSessions
			return len(s) == 0 || s[0].Connections == 0
		})
		if c.want < 2 {
			eventually(t, "the session has ended", func() bool { return len(beta.status().TargetSessions) == 0 })
		} else if len(s) != 1 || s[0].Failed != 1 {
			t.Errorf("%q: %+v", c.file, s)
		}
	}
	s, err := beta.api.EndTargetSession(t.Context(), beta.status().TargetSessions[0].ID)
	if err != nil || s.Recovery != 2 {
		t.Errorf("%v: %+v", err, s)
	}
	eventually(t, "the session has ended", func() bool { return len(beta.status().TargetSessions) == 0 })
}

// TestSecretsOfInitiators: who has the secret comes in, and no log or answer shows one.
func TestSecretsOfInitiators(t *testing.T) {
	if _, err := exec.LookPath("iscsi-inq"); err != nil {
		t.Skipf("needs libiscsi-bin: %v", err)
	}
	_, beta, _ := pair(t, 1<<20)
	const secret, own, next = "secret-of-the-initiator", "secret-of-the-target", "another-secret-of-it"
	beta.write("secrets/i.chap", secret+"\n")
	beta.write("secrets/t.chap", own+"\n")
	port := iwarptest.FreePort(t)
	user := api.CHAPUser{User: "alice", SecretFile: filepath.Join(beta.dir, "secrets/i.chap"), TargetUser: "disks", TargetSecretFile: filepath.Join(beta.dir, "secrets/t.chap")}
	if _, err := beta.api.AddTarget(t.Context(), api.TargetSpec{Name: "disks", IQN: diskIQN, Port: port, Peers: []string{"alpha"}, CHAP: []api.CHAPUser{user}, LUNs: []api.LUNSpec{{Path: beta.image("other.img", 1<<20)}}}); err != nil {
		t.Fatal(err)
	}
	inq := func(works bool, s, mutual string) {
		t.Helper()
		url := fmt.Sprintf("iscsi://alice%%%s@127.0.0.1:%d/%s/0", s, port, diskIQN)
		if mutual != "" {
			url += "?target_user=disks&target_password=" + mutual
		}
		if out, err := exec.CommandContext(t.Context(), "iscsi-inq", url).CombinedOutput(); (err == nil) != works {
			t.Errorf("%s: %v\n%s", url, err, out)
		}
	}
	inq(true, secret, "")
	inq(true, secret, own)
	inq(false, secret, next)
	inq(false, own, "")
	if _, st := login(t, port, "iqn.x:i"); st != iscsi.LoginAuthFailure {
		t.Errorf("without a secret: %#x", st)
	}
	beta.write("secrets/i.chap", next)
	if _, err := beta.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	inq(true, next, "")
	inq(false, secret, "")
	if err := os.Chmod(user.SecretFile, 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := beta.api.Reload(t.Context())
	if err != nil || len(r.Unusable) != 1 || !strings.Contains(r.Unusable[0].Message, "mode 0644") {
		t.Errorf("%+v, %v", r, err)
	}
	inq(true, next, "") // it is in use still
	if v := beta.target(); v.State != api.TargetProblem {
		t.Errorf("%+v", v)
	}
	beta.stop()
	beta.start()
	if _, st := login(t, port, "iqn.x:i"); st != iscsi.LoginUnavailable {
		t.Errorf("with a file of secrets that cannot be used: %#x", st)
	}
	for _, s := range []string{secret, own, next} {
		if strings.Contains(beta.log.String(), s) {
			t.Errorf("the log has %s", s)
		}
	}
}
