package target_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi"
)

// said turns a script into PDUs of full feature phase: mostly right numbers, few tags, any CDB.
func said(script []byte) (out []byte) {
	cmdSN := uint32(1)
	take := func() (b byte) {
		if len(script) > 0 {
			b, script = script[0], script[1:]
		}
		return b
	}
	for len(script) > 0 {
		var h iscsi.BHS
		var data []byte
		kind, tag, more := take(), uint32(take()%8), take()
		sn := cmdSN + uint32(more>>6) // some come early
		immediate := more&1 != 0
		if more&0x3e != 0 {
			data = make([]byte, int(more&0x3e)*32)
		}
		counted := !immediate
		switch kind % 8 {
		case 0, 1:
			k := iscsi.Command{Immediate: immediate, Final: kind&8 == 0, Read: kind&16 != 0, Write: kind&32 != 0, Attr: iscsi.Attr(kind >> 6), ITT: tag, EDTL: uint32(take()) << 6, CmdSN: sn, LUN: [8]byte{1: take() % 4}}
			for i := range k.CDB {
				k.CDB[i] = take()
			}
			k.Put(&h)
		case 2:
			d := iscsi.DataOut{Final: kind&8 != 0, ITT: tag, TTT: uint32(take()%4) - 1, DataSN: uint32(take() % 4), Offset: uint32(take()) << 6}
			d.Put(&h)
			counted = false
		case 3:
			m := iscsi.TaskMgmt{Immediate: immediate, Function: iscsi.Function(take() % 10), ITT: tag + 8, RefTag: uint32(take() % 8), CmdSN: sn, RefCmdSN: cmdSN - uint32(take()%4), LUN: [8]byte{1: take() % 4}}
			m.Put(&h)
			data = nil
		case 4:
			n := iscsi.NOP{Immediate: immediate, ITT: tag - uint32(kind>>7), TTT: iscsi.NoTag, CmdSN: sn}
			n.PutOut(&h)
		case 5:
			q := iscsi.Text{Immediate: immediate, Final: kind&8 == 0, Continue: kind&16 != 0, ITT: tag, TTT: uint32(take()%4) - 1, CmdSN: sn}
			q.PutRequest(&h)
			data = []byte("SendTargets=All\x00MaxRecvDataSegmentLength=512\x00X-a=b\x00"[:min(int(take()), 51)])
		case 6:
			l := iscsi.Logout{Immediate: immediate, Reason: take() % 4, ITT: tag, CID: uint16(take() % 2), CmdSN: sn}
			l.Put(&h)
			data = nil
		case 7:
			s := iscsi.SNACK{Type: take() % 5, ITT: tag}
			s.Put(&h)
			data, counted = nil, false
		}
		if counted && sn == cmdSN {
			cmdSN++
		}
		h.SetLengths(0, len(data))
		out = append(append(append(out, h[:]...), data...), make([]byte, iscsi.Pad(len(data)))...)
	}
	return out
}

// FuzzSession proves that whatever an initiator says in full feature phase, its connection comes to an end when
// it has said it, and nothing is left of it.
func FuzzSession(f *testing.F) {
	s := serve(f, target.Config{Ping: -1}, nil, unit{size: 1 << 20}, unit{size: 1 << 20, removable: true}, unit{size: 1 << 20, readOnly: true})
	f.Add([]byte{32, 1, 0x10, 8, 0, scsi.Write10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 10, 1, 0x10, 0, 0, 8})
	f.Add([]byte{0x20, 2, 0, 0x30, 0, scsi.PersistentReserveOut, 0, 1, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 3, 1, 1, 2, 2, 0, 0})
	f.Add([]byte{3, 0, 0x41, 5, 0, 0, 0, 4, 1, 0x40, 5, 1, 0, 1, 51, 6, 2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 4096 {
			return
		}
		c := dial(t, s, 1, "InitialR2T=No", "MaxRecvDataSegmentLength=65536")
		over := make(chan error)
		go func() {
			_, err := io.Copy(io.Discard, c.nc)
			over <- err
		}()
		if _, err := c.nc.Write(said(script)); err != nil {
			t.Log(err) // the target has ended it
		}
		c.nc.(*net.TCPConn).CloseWrite()
		if err := <-over; errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the connection does not end")
		}
	})
}
