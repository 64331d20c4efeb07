package attack

import (
	"bytes"
	"context"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iscsi"
	iscsitarget "github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/iser"
	"github.com/ironwarp/ironwarp/iser/isertest"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// overRDMA logs in to a target with a disk by iSER.
func (v *target) overRDMA(d *ramDisk) *isertest.Initiator {
	v.Helper()
	srv := iscsitarget.NewServer(iscsitarget.Config{LogoutWait: -1})
	if err := srv.Add(&iscsitarget.Target{Name: diskName, Device: v.units(d)}); err != nil {
		v.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ln := must(v.dev.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: &transport.Config{Protector: transport.LoopbackOnly()}}))(v.T)
	done := make(chan error, 1)
	go func() { done <- srv.ServeRDMA(ctx, ln, v.ulp) }()
	v.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			v.Error(err)
		}
	})
	i := must(isertest.New(isertest.Options{IRD: 4, Receives: 16}))(v.T)
	v.Cleanup(func() { i.Close() })
	if err := i.Dial(v.Context(), ln.Addr()); err != nil {
		v.Fatal(err)
	}
	q := iscsi.LoginRequest{Transit: true, CSG: iscsi.Operational, NSG: iscsi.FullFeature, ISID: [6]byte{0x80, 1}, CmdSN: 1}
	var h iscsi.BHS
	q.Put(&h)
	v.exchange(i, iser.Header{}, &h, []byte("InitiatorName="+hisName+"\x00TargetName="+diskName+"\x00RDMAExtensions=Yes\x00"))
	k := iscsi.Command{Final: true, Attr: iscsi.Simple, ITT: 1, CmdSN: 1}
	k.Put(&h)
	v.exchange(i, iser.Header{}, &h, nil) // takes the unit attention
	return i
}

// exchange sends a PDU, and returns the answer.
func (v *target) exchange(i *isertest.Initiator, head iser.Header, h *iscsi.BHS, data []byte) iscsi.BHS {
	v.Helper()
	if err := i.Send(head, h, data); err != nil {
		v.Fatal(err)
	}
	m, _, err := i.Receive(v.Context())
	if err != nil {
		v.Fatal(err)
	}
	return m.BHS
}

// TestMemoryOfAnInitiator: of the memory that an initiator names for a command, what it expects is written, and
// not the rest of what the command would move.
func TestMemoryOfAnInitiator(t *testing.T) {
	run(t, attack{"behind what it expects", checks.ExactWindow, func(v *target) bool {
		i := v.overRDMA(newRAMDisk())
		untouched := bytes.Repeat([]byte{0xaa}, 8192)
		mr := must(i.Memory(bytes.Clone(untouched), verbs.LocalWrite|verbs.RemoteWrite))(v.T)
		k := iscsi.Command{Final: true, Read: true, Attr: iscsi.Simple, ITT: 2, CmdSN: 2, EDTL: 1000}
		copy(k.CDB[:], cdb10(scsi.Read10, 8))
		var h iscsi.BHS
		k.Put(&h)
		h = v.exchange(i, iser.Header{Read: true, ReadTag: mr.STag()}, &h, nil)
		if h.Opcode() != iscsi.OpResponse || !bytes.Equal(mr.Bytes()[:1000], make([]byte, 1000)) {
			v.Errorf("%v, and not what was expected", h.Opcode())
		}
		return !bytes.Equal(mr.Bytes()[1000:], untouched[1000:])
	}})
}
