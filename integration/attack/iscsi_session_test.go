package attack

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iscsi"
	iscsitarget "github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi"
)

// Who may not log in, or not as that, and who has what is another's.

func TestSessionOfAnotherInitiator(t *testing.T) {
	run(t,
		attack{"is replaced by a login in its name", checks.SessionOwner, func(v *target) bool {
			p := v.disks(iscsitarget.Config{}, newRAMDisk())
			his := p.connect(honestHost).mustLogin(1)
			st := p.connect(hostileHost).login()
			if st != iscsi.LoginOK && st != iscsi.LoginForbidden {
				v.Errorf("status %#x", st)
			}
			if st != iscsi.LoginOK && his.do(0, nil, 0, scsi.TestUnitReady) != scsi.Good {
				v.Error("the session does not go on")
			}
			return st == iscsi.LoginOK
		}},
		attack{"gets one more connection", checks.SessionOwner, func(v *target) bool {
			p := v.disks(iscsitarget.Config{}, newRAMDisk())
			his := p.connect(honestHost).mustLogin(1, "MaxConnections=4")
			i := p.connect(hostileHost)
			i.tsih, i.cid, i.cmdSN = his.tsih, 1, his.cmdSN
			st := i.login()
			if his.do(0, nil, 0, scsi.TestUnitReady) != scsi.Good {
				v.Error("the session does not go on")
			}
			return st == iscsi.LoginOK
		}},
		attack{"loses a connection to one of the same number", checks.SessionOwner, func(v *target) bool {
			p := v.disks(iscsitarget.Config{}, newRAMDisk())
			his := p.connect(honestHost).mustLogin(1)
			i := p.connect(hostileHost)
			i.tsih, i.cmdSN = his.tsih, his.cmdSN
			st := i.login()
			if st != iscsi.LoginOK && his.do(0, nil, 0, scsi.TestUnitReady) != scsi.Good {
				v.Error("the session does not go on")
			}
			return st == iscsi.LoginOK
		}},
		attack{"is found by guessing its handle", checks.None, func(v *target) bool {
			p := v.disks(iscsitarget.Config{}, newRAMDisk())
			p.connect(honestHost).mustLogin(1, "MaxConnections=4")
			for tsih := range uint16(8) {
				i := p.connect(hostileHost)
				i.name, i.tsih, i.cid = "iqn.2026-01.org.example:mine", tsih+1, 1
				if st := i.login(); st != iscsi.LoginNoSession {
					v.Errorf("handle %d: status %#x", tsih+1, st)
					return st == iscsi.LoginOK
				}
			}
			return false
		}},
	)
}

// admitted lets the honest host see the disk, and nobody else.
func admitted(o iscsitarget.Origin, _ string) bool { return o.Peer == honestHost }

func TestTargetThatAnInitiatorMayNotSee(t *testing.T) {
	closed := func(v *target) *portal {
		return v.portal(iscsitarget.Config{}, &iscsitarget.Target{Name: diskName, Device: v.units(newRAMDisk()), Admits: admitted})
	}
	run(t,
		attack{"is told of", checks.Admission, func(v *target) bool {
			p := closed(v)
			sees := func(host string, isid byte) bool {
				i := p.connect(host)
				i.isid = isid
				return bytes.Contains(i.discovers().text("SendTargets=All"), []byte(diskName))
			}
			if !sees(honestHost, 1) {
				v.Error("who may is not told either")
			}
			return sees(hostileHost, 2)
		}},
		attack{"lets it in", checks.Admission, func(v *target) bool {
			st := closed(v).connect(hostileHost).login()
			if st != iscsi.LoginOK && st != iscsi.LoginForbidden {
				v.Errorf("status %#x", st)
			}
			return st == iscsi.LoginOK
		}},
	)
}

// discovers logs in to a discovery session.
func (i *talker) discovers() *talker {
	i.p.v.Helper()
	if r, _ := i.say(iscsi.Operational, iscsi.FullFeature, true, "InitiatorName="+i.name, "SessionType=Discovery"); r.Status != iscsi.LoginOK {
		i.p.v.Fatalf("login status %#x", r.Status)
	}
	return i
}

// text makes a Text Request, and returns the answer, nothing if it is rejected.
func (i *talker) text(pairs ...string) []byte {
	i.p.v.Helper()
	q := iscsi.Text{Immediate: true, Final: true, ITT: 9, TTT: iscsi.NoTag, CmdSN: i.cmdSN, ExpStatSN: i.statSN}
	var h iscsi.BHS
	q.PutRequest(&h)
	var b []byte
	for _, s := range pairs {
		b = append(append(b, s...), 0)
	}
	i.send(&h, b)
	h, b, ok := i.receive()
	if !ok || h.Opcode() != iscsi.OpTextResp && h.Opcode() != iscsi.OpReject {
		i.p.v.Fatalf("%v to a Text Request", h.Opcode())
	}
	if h.Opcode() == iscsi.OpReject {
		return nil
	}
	return b
}

var users = []chap.Credentials{
	{Name: "alice", Secret: []byte("what alice knows"), OwnName: "disk", OwnSecret: []byte("what the disk knows")},
	{Name: "bob", Secret: []byte("what bob knows...")},
	{Name: "iqn.2026-01.org.example:carol", Secret: []byte("what carol knows")},
}

// TestInitiatorThatDoesNotKnowTheSecret: nobody gets in by anything else than the response to the challenge.
func TestInitiatorThatDoesNotKnowTheSecret(t *testing.T) {
	secured := func(v *target) *talker {
		return v.portal(iscsitarget.Config{}, &iscsitarget.Target{Name: diskName, Device: v.units(newRAMDisk()), CHAP: users}).connect(hostileHost)
	}
	names := []string{"InitiatorName=" + hisName, "TargetName=" + diskName}
	// asked returns the target's challenge.
	asked := func(i *talker) (id uint8, challenge []byte) {
		i.say(iscsi.Security, iscsi.Operational, false, append(names, "AuthMethod=CHAP")...)
		_, a := i.say(iscsi.Security, iscsi.Operational, false, "CHAP_A=5")
		n, err := strconv.Atoi(a["CHAP_I"])
		challenge, err2 := hex.DecodeString(strings.TrimPrefix(a["CHAP_C"], "0x"))
		if err != nil || err2 != nil || len(challenge) < 16 {
			i.p.v.Fatalf("the challenge is %v", a)
		}
		return uint8(n), challenge
	}
	response := func(u *chap.Credentials, id uint8, challenge []byte) string {
		return "CHAP_R=0x" + hex.EncodeToString(chap.Response(chap.MD5, id, u.Secret, challenge))
	}
	in := func(r iscsi.LoginResponse) bool { return r.Status == iscsi.LoginOK && r.Transit }
	attacks := []attack{
		{"goes on without having answered", checks.Authentication, func(v *target) bool {
			i := secured(v)
			r, _ := i.say(iscsi.Security, iscsi.FullFeature, true, append(names, "AuthMethod=CHAP")...)
			return in(r)
		}},
		{"has its challenge answered by the target", checks.Reflection, func(v *target) bool {
			i := secured(v) // which knows alice's secret, and is after the target's
			id, c := asked(i)
			r, a := i.say(iscsi.Security, iscsi.FullFeature, true, "CHAP_N=alice", response(&users[0], id, c), fmt.Sprintf("CHAP_I=%d", id), "CHAP_C=0x"+hex.EncodeToString(c))
			return in(r) && a["CHAP_R"] != ""
		}},
		{"skips the stage", checks.None, func(v *target) bool {
			r, _ := secured(v).say(iscsi.Operational, iscsi.FullFeature, true, names...)
			return in(r)
		}},
		{"offers no CHAP", checks.None, func(v *target) bool {
			r, _ := secured(v).say(iscsi.Security, iscsi.FullFeature, true, append(names, "AuthMethod=None")...)
			return in(r)
		}},
		{"uses another's name with its own secret", checks.None, func(v *target) bool {
			i := secured(v) // which knows bob's
			id, c := asked(i)
			r, _ := i.say(iscsi.Security, iscsi.FullFeature, true, "CHAP_N=alice", response(&users[1], id, c))
			return in(r)
		}},
		{"uses the name of an initiator that it is not", checks.None, func(v *target) bool {
			i := secured(v) // which knows carol's, and is not carol's initiator
			id, c := asked(i)
			r, _ := i.say(iscsi.Security, iscsi.FullFeature, true, "CHAP_N="+users[2].Name, response(&users[2], id, c))
			return in(r)
		}},
		{"replays the response to another challenge", checks.None, func(v *target) bool {
			i := secured(v)
			id, c := asked(i)
			old := response(&users[0], id, c)
			j := i.p.connect(hostileHost)
			j.isid = 2
			asked(j)
			r, _ := j.say(iscsi.Security, iscsi.FullFeature, true, "CHAP_N=alice", old)
			return in(r)
		}},
		{"chooses an algorithm that is none", checks.None, func(v *target) bool {
			i := secured(v)
			i.say(iscsi.Security, iscsi.Operational, false, append(names, "AuthMethod=CHAP")...)
			r, _ := i.say(iscsi.Security, iscsi.Operational, false, "CHAP_A=0,6,255")
			return r.Status == iscsi.LoginOK
		}},
	}
	for name, said := range map[string][]string{
		"an empty response":             {"CHAP_N=alice", "CHAP_R="},
		"a response of no bytes":        {"CHAP_N=alice", "CHAP_R=0x"},
		"a response that is no number":  {"CHAP_N=alice", "CHAP_R=0xgg"},
		"a response of a thousand":      {"CHAP_N=alice", "CHAP_R=0x" + strings.Repeat("00", 1024)},
		"a response beyond any":         {"CHAP_N=alice", "CHAP_R=0x" + strings.Repeat("00", 3000)},
		"no name":                       {"CHAP_R=0x00112233445566778899aabbccddeeff"},
		"a name beyond any":             {"CHAP_N=" + strings.Repeat("a", 3000), "CHAP_R=0x00112233445566778899aabbccddeeff"},
		"a name twice":                  {"CHAP_N=bob", "CHAP_N=alice", "CHAP_R=0x00112233445566778899aabbccddeeff"},
		"half of what asks the target":  {"CHAP_N=alice", "CHAP_R=0x00112233445566778899aabbccddeeff", "CHAP_I=1"},
		"an identifier that is too big": {"CHAP_N=alice", "CHAP_R=0x00112233445566778899aabbccddeeff", "CHAP_I=256", "CHAP_C=0x00"},
		"the algorithm again":           {"CHAP_A=5", "CHAP_N=alice", "CHAP_R=0x00112233445566778899aabbccddeeff"},
	} {
		attacks = append(attacks, attack{"says " + name, checks.None, func(v *target) bool {
			i := secured(v)
			asked(i)
			r, _ := i.say(iscsi.Security, iscsi.FullFeature, true, said...)
			return r.Status == iscsi.LoginOK
		}})
	}
	run(t, attacks...)
}

// TestLoginsWithoutEnd: who does not log in, or does so again and again, keeps nobody else out.
func TestLoginsWithoutEnd(t *testing.T) {
	run(t,
		attack{"of connections that say nothing", checks.HalfOpen, func(v *target) bool {
			p := v.disks(iscsitarget.Config{MaxLogins: 8}, newRAMDisk())
			for range 8 {
				p.connect(hostileHost)
			}
			return p.connect(honestHost).login() != iscsi.LoginOK
		}},
		attack{"of sessions of one peer", checks.PeerQuota, func(v *target) bool {
			p := v.disks(iscsitarget.Config{MaxSessions: 8, MaxOfInitiator: 8}, newRAMDisk())
			for n := range byte(8) {
				i := p.connect(hostileHost)
				i.isid = n
				i.login()
			}
			i := p.connect(honestHost)
			i.isid = 99
			return i.login() != iscsi.LoginOK
		}},
		attack{"of one connection", checks.None, func(v *target) bool {
			i := v.disks(iscsitarget.Config{}, newRAMDisk()).connect(hostileHost)
			for n := range 100 {
				r, _ := i.say(iscsi.Operational, iscsi.FullFeature, false, []string{"InitiatorName=" + hisName, "TargetName=" + diskName}[min(n, 2):]...)
				if r.Status != iscsi.LoginOK {
					return false
				}
			}
			return true
		}},
		attack{"of text that goes on and on", checks.None, func(v *target) bool {
			i := v.disks(iscsitarget.Config{}, newRAMDisk()).connect(hostileHost)
			for n := range 8 {
				q := iscsi.LoginRequest{Continue: true, CSG: iscsi.Operational, ISID: [6]byte{0x80, 1}, CmdSN: 1}
				var h iscsi.BHS
				q.Put(&h)
				i.send(&h, bytes.Repeat([]byte("X-a=b\x00"), 8000/6))
				h, _, ok := i.receive()
				if r, err := iscsi.ParseLoginResponse(&h); !ok || err != nil || r.Status != iscsi.LoginOK {
					return n > 2 // 16 KiB are taken
				}
			}
			return true
		}},
		attack{"of keys that nobody knows", checks.None, func(v *target) bool {
			i := v.disks(iscsitarget.Config{}, newRAMDisk()).connect(hostileHost)
			said := []string{"InitiatorName=" + hisName, "TargetName=" + diskName}
			for n := range 120 {
				said = append(said, fmt.Sprintf("X-%060d=", n))
			}
			r, _ := i.say(iscsi.Operational, iscsi.FullFeature, true, said...)
			return r.Status == iscsi.LoginOK
		}},
		attack{"of a name that steers a terminal", checks.None, func(v *target) bool {
			i := v.disks(iscsitarget.Config{}, newRAMDisk()).connect(hostileHost)
			i.name = "iqn.2026-01.org.example:\u009b2J\u202e"
			return i.login() == iscsi.LoginOK
		}},
	)
}

// TestRequestsWithoutEnd: what an initiator asks for is bounded, whatever it leaves unfinished.
func TestRequestsWithoutEnd(t *testing.T) {
	run(t,
		attack{"more commands than it was let have", checks.CommandWindow, func(v *target) bool {
			i := v.disks(iscsitarget.Config{}, newRAMDisk()).connect(hostileHost).mustLogin(1)
			for n := i.maxSN - i.cmdSN + 2; n > 0; n-- { // one has ended
				i.start(0, true, 512, cdb10(scsi.Write10, 1)...)
			}
			itt := i.start(0, false, 0, scsi.TestUnitReady)
			return slices.ContainsFunc(i.ping(), func(h iscsi.BHS) bool { return h.Opcode() == iscsi.OpResponse && h.ITT() == itt })
		}},
		attack{"task management while data are awaited", checks.RequestBound, func(v *target) bool {
			i := v.disks(iscsitarget.Config{DataWait: patience}, newRAMDisk()).connect(hostileHost).mustLogin(1)
			i.start(0, true, 512, cdb10(scsi.Write10, 1)...)
			for n := range uint32(100) {
				m := iscsi.TaskMgmt{Immediate: true, Function: iscsi.AbortTaskSet, ITT: 1000 + n, CmdSN: i.cmdSN, ExpStatSN: i.statSN}
				var h iscsi.BHS
				m.Put(&h)
				i.send(&h, nil)
			}
			return !slices.ContainsFunc(i.ping(), func(h iscsi.BHS) bool {
				return h.Opcode() == iscsi.OpReject && iscsi.ParseReject(&h).Reason == iscsi.RejectTooManyImmediate
			})
		}},
		attack{"one key again and again", checks.TextBound, func(v *target) bool {
			i := v.disks(iscsitarget.Config{}, newRAMDisk()).connect(hostileHost).mustLogin(1)
			return bytes.Count(i.text(slices.Repeat([]string{"SendTargets="}, 50)...), []byte(diskName)) > 1
		}},
		attack{"copies in all units at once", checks.CopyShare, func(v *target) bool {
			d := newRAMDisk()
			d.hold = make(chan struct{})
			i := v.disks(iscsitarget.Config{}, d, d, d).connect(hostileHost).mustLogin(3)
			defer close(d.hold)
			list := copyWithin(d)
			for n := range byte(9) {
				itt := i.start(n%3, true, uint32(len(list)), scsi.ExtendedCopy, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(len(list)))
				h := i.wait(iscsi.OpR2T)
				r := must(iscsi.ParseR2T(&h))(v.T)
				list[0] = n
				i.dataOut(iscsi.DataOut{Final: true, ITT: itt, TTT: r.TTT}, list)
			}
			return !slices.ContainsFunc(i.ping(), func(h iscsi.BHS) bool { return h.Opcode() == iscsi.OpResponse && scsi.Status(h[3]) == scsi.TaskSetFull })
		}},
		attack{"a discovery session that it has no use for", checks.None, func(v *target) bool {
			p := v.disks(iscsitarget.Config{Ping: 10 * time.Millisecond}, newRAMDisk())
			_, _, goesOn := p.connect(hostileHost).discovers().receive() // which ends with the connection
			return goesOn
		}},
	)
}

// copyWithin is the parameter list of an EXTENDED COPY of one block within a disk.
func copyWithin(d *ramDisk) []byte {
	id := d.identity.Disk
	b := make([]byte, scsi.CopyHeaderLen+scsi.CopyTargetLen+scsi.CopySegmentLen)
	b[3], b[11] = scsi.CopyTargetLen, scsi.CopySegmentLen
	unit := b[scsi.CopyHeaderLen:]
	unit[0], unit[4], unit[5], unit[7] = scsi.CopyIdentification, scsi.Binary, scsi.TypeNAA, 8
	copy(unit[8:], id[:8])
	unit[8] = 0x30 | id[0]&0xf
	unit[30] = 2 // blocks of 512 bytes
	segment := unit[scsi.CopyTargetLen:]
	segment[0], segment[3], segment[11], segment[27] = scsi.CopyBlockToBlock, scsi.CopySegmentLen-4, 1, 1
	return b
}

// TestDataOfAnInitiator: what a command moves is what was said, in its place, and no byte of another's.
func TestDataOfAnInitiator(t *testing.T) {
	// begun is a write of two blocks, and the R2T that asks for them.
	begun := func(i *talker) (itt uint32, r iscsi.R2T) {
		itt = i.start(0, true, 1024, cdb10(scsi.Write10, 2)...)
		h := i.wait(iscsi.OpR2T)
		return itt, must(iscsi.ParseR2T(&h))(i.p.v.T)
	}
	half := bytes.Repeat([]byte{0xee}, 512)
	attacks := []attack{
		{"come twice in one place", checks.DataOrder, func(v *target) bool {
			i := v.disks(iscsitarget.Config{}, newRAMDisk()).connect(hostileHost).mustLogin(1)
			itt, r := begun(i)
			i.dataOut(iscsi.DataOut{ITT: itt, TTT: r.TTT}, half)
			i.dataOut(iscsi.DataOut{Final: true, ITT: itt, TTT: r.TTT, DataSN: 1}, half)
			return scsi.Status(i.status()) == scsi.Good
		}},
		{"have a gap in their numbers", checks.DataOrder, func(v *target) bool {
			i := v.disks(iscsitarget.Config{}, newRAMDisk()).connect(hostileHost).mustLogin(1)
			itt, r := begun(i)
			i.dataOut(iscsi.DataOut{ITT: itt, TTT: r.TTT}, half)
			i.dataOut(iscsi.DataOut{Final: true, ITT: itt, TTT: r.TTT, DataSN: 2, Offset: 512}, half)
			return scsi.Status(i.status()) == scsi.Good
		}},
		{"are more than it expects", checks.ExactWindow, func(v *target) bool {
			i := v.disks(iscsitarget.Config{}, newRAMDisk()).connect(hostileHost).mustLogin(1)
			i.do(0, nil, 512, cdb10(scsi.Read10, 8)...)
			if len(i.in) < 512 {
				v.Errorf("%d bytes instead of 512", len(i.in))
			}
			return len(i.in) > 512
		}},
		{"are another's, where storage reads less than was asked", checks.Zeroed, func(v *target) bool {
			p := v.disks(iscsitarget.Config{}, newRAMDisk(), newDisk())
			secret := bytes.Repeat([]byte("secret"), 4096/6+1)[:4096]
			his := p.connect(honestHost).mustLogin(2)
			if st := his.do(0, secret, 0, cdb10(scsi.Write10, 8)...); st != scsi.Good {
				v.Fatalf("%v", st)
			}
			his.do(0, nil, 0, scsi.TestUnitReady) // by its answer the buffer is given back
			i := p.connect(hostileHost)
			i.isid = 2
			i.mustLogin(2).do(1, nil, 4096, cdb10(scsi.Read10, 8)...)
			return bytes.Contains(i.in, []byte("secretsecret"))
		}},
	}
	for name, spoil := range map[string]func(d *iscsi.DataOut) int{
		"are longer than was asked for":  func(d *iscsi.DataOut) int { return 1028 },
		"are shorter than was asked for": func(d *iscsi.DataOut) int { return 1020 },
		"begin behind their place":       func(d *iscsi.DataOut) int { d.Offset = 512; return 512 },
		"begin before all places":        func(d *iscsi.DataOut) int { d.Offset = 1<<32 - 512; return 1024 },
	} {
		attacks = append(attacks, attack{name, checks.None, func(v *target) bool {
			d := newRAMDisk()
			i := v.disks(iscsitarget.Config{}, d).connect(hostileHost).mustLogin(1)
			itt, r := begun(i)
			out := iscsi.DataOut{Final: true, ITT: itt, TTT: r.TTT}
			n := spoil(&out)
			i.dataOut(out, bytes.Repeat([]byte{0xee}, n))
			good := scsi.Status(i.status()) == scsi.Good
			return good || bytes.Contains(d.content(4096), []byte{0xee})
		}})
	}
	for name, spoil := range map[string]func(d *iscsi.DataOut){
		"have a tag that there is not":      func(d *iscsi.DataOut) { d.TTT += 77 },
		"have the tag of another command":   func(d *iscsi.DataOut) { d.ITT += 77 },
		"come unasked":                      func(d *iscsi.DataOut) { d.TTT = iscsi.NoTag },
		"are those of a command that ended": func(d *iscsi.DataOut) { d.ITT-- },
	} {
		attacks = append(attacks, attack{name, checks.None, func(v *target) bool {
			d := newRAMDisk()
			i := v.disks(iscsitarget.Config{}, d).connect(hostileHost).mustLogin(1)
			itt, r := begun(i)
			out := iscsi.DataOut{Final: true, ITT: itt, TTT: r.TTT}
			spoil(&out)
			i.dataOut(out, bytes.Repeat([]byte{0xee}, 1024))
			return len(i.ping()) > 0 || bytes.Contains(d.content(4096), []byte{0xee})
		}})
	}
	run(t, attacks...)
}
