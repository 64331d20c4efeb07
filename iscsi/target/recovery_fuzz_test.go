package target_test

import (
	"io"
	"math"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi"
)

// script is what a hostile initiator does, as bytes.
type script []byte

func (s *script) next() uint32 {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	switch { // small numbers, those beside them, and large ones
	case b < 200:
		return uint32(b) & 0x3f
	case b < 220:
		return math.MaxUint32 - uint32(b-200)
	case b < 240:
		return 1<<31 + uint32(b-230)
	}
	return uint32(b-240) << 12
}

// FuzzRecovery proves that nothing that an initiator asks to be sent again or reassigned, and in no order, ends the
// target or hurts another session.
func FuzzRecovery(f *testing.F) {
	s := serve(f, target.Config{}, nil, unit{size: 1 << 20})
	other := dial(f, s, 2)
	other.ready()
	f.Add([]byte{1, 4, 8, 0, 0, 1, 255, 0, 0, 0, 0, 0, 1, 255, 255, 0, 0})
	f.Add([]byte{2, 4, 2, 0, 0, 4, 255, 0, 0, 3, 4, 0, 0, 0, 2, 0, 5, 1, 4, 8, 4, 0})
	f.Add([]byte{1, 4, 8, 6, 2, 0, 5, 0, 4, 8, 4, 1, 0, 3, 4, 7, 0, 0})
	f.Fuzz(func(t *testing.T, said []byte) {
		c := dial(t, s, 1, "ErrorRecoveryLevel=2", "MaxConnections=2", "MaxRecvDataSegmentLength=512", "InitialR2T=No")
		first := c.statSN
		go io.Copy(io.Discard, c.nc)
		in := script(said)
		for n := 0; len(in) > 0 && n < 64; n++ {
			var h iscsi.BHS
			op := in.next() % 8
			exp := first + in.next()
			switch op {
			case 0:
				q := iscsi.SNACK{Type: uint8(in.next() % 4), ITT: in.next(), TTT: in.next(), BegRun: in.next(), RunLength: in.next(), ExpStatSN: exp}
				if q.Type == iscsi.SNACKStatus {
					q.BegRun += first
				}
				q.Put(&h)
			case 1, 2:
				k := write10(in.next(), byte(in.next()%16+1))
				if op == 1 {
					k.Read, k.Write, k.CDB[0] = true, false, scsi.Read10
				}
				k.CmdSN, k.ExpStatSN, k.Immediate = c.cmdSN, exp, in.next() == 1
				if !k.Immediate {
					c.cmdSN++
				}
				k.Put(&h)
			case 3:
				d := iscsi.DataOut{ITT: in.next(), TTT: in.next(), DataSN: in.next(), Offset: in.next() * 512, Final: in.next()%2 == 0, ExpStatSN: exp}
				d.Put(&h)
				c.send(&h, make([]byte, 512))
				continue
			case 4:
				function := iscsi.Function(in.next() % 9)
				if function == iscsi.TargetColdReset { // it ends all sessions
					function = iscsi.TaskReassign
				}
				m := iscsi.TaskMgmt{Immediate: true, Function: function, RefTag: in.next(), ExpDataSN: in.next(), RefCmdSN: in.next(), ITT: 5000, CmdSN: c.cmdSN, ExpStatSN: exp}
				m.Put(&h)
			case 5:
				if in.next()%2 == 0 {
					c.nc.Close()
				}
				o, st := logIn(t, s, identity{isid: 1, tsih: c.tsih, cid: uint16(in.next() % 3), cmdSN: math.MaxUint32})
				if st != iscsi.LoginOK {
					return
				}
				o.cmdSN, first = c.cmdSN, o.statSN
				c = o
				go io.Copy(io.Discard, c.nc)
				continue
			case 6:
				l := iscsi.Logout{Immediate: true, Reason: uint8(in.next() % 3), CID: uint16(in.next() % 3), ITT: 6000, CmdSN: c.cmdSN, ExpStatSN: exp}
				l.Put(&h)
			case 7:
				q := iscsi.NOP{Immediate: true, ITT: iscsi.NoTag, TTT: iscsi.NoTag, CmdSN: c.cmdSN, ExpStatSN: exp}
				q.PutOut(&h)
			}
			c.send(&h, nil)
		}
		c.nc.Close()
		other.t = t
		other.nc.SetDeadline(time.Now().Add(time.Minute))
		var h iscsi.BHS
		q := iscsi.NOP{Immediate: true, ITT: 7, TTT: iscsi.NoTag, CmdSN: other.cmdSN, ExpStatSN: other.statSN}
		q.PutOut(&h)
		other.send(&h, nil)
		for h, _ = other.receive(); h.Opcode() != iscsi.OpNOPIn || h.ITT() != 7; h, _ = other.receive() {
			if h == (iscsi.BHS{}) {
				t.Fatal("another session has ended")
			}
		}
	})
}
