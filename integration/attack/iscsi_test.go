package attack

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/iscsi"
	iscsitarget "github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

// What follows is an iSCSI target and the initiators that attack it. These say whatever an attack has
// them say; of the product they use the codec of PDUs alone.

// The hosts that initiators are on, each of which is a peer.
const (
	honestHost  = "127.0.0.1"
	hostileHost = "127.0.0.2"
)

const (
	diskName = "iqn.2026-01.org.example:disk"
	hisName  = "iqn.2026-01.org.example:his" // an initiator's
)

// portal is where a server of targets listens.
type portal struct {
	v       *target
	srv     *iscsitarget.Server
	address string
}

// portal serves targets. A peer has the name of its host.
func (v *target) portal(cfg iscsitarget.Config, targets ...*iscsitarget.Target) *portal {
	v.Helper()
	cfg.LogoutWait = -1
	cfg.PeerOf = func(nc net.Conn) string { return nc.RemoteAddr().(*net.TCPAddr).IP.String() }
	p := &portal{v: v, srv: iscsitarget.NewServer(cfg)}
	for _, t := range targets {
		if err := p.srv.Add(t); err != nil {
			v.Fatal(err)
		}
	}
	ln := must(net.Listen("tcp", "127.0.0.1:0"))(v.T)
	p.address = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.srv.Serve(ctx, ln) }()
	v.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			v.Error(err)
		}
	})
	return p
}

// units is a device with the storages as its LUNs.
func (v *target) units(all ...lu.Medium) *lu.Device {
	v.Helper()
	d := &lu.Device{}
	for n, m := range all {
		if err := d.Add(uint16(n), must(lu.New(lu.Config{Medium: m}))(v.T)); err != nil {
			v.Fatal(err)
		}
	}
	return d
}

// disks is a portal with one target that has storages as its LUNs.
func (v *target) disks(cfg iscsitarget.Config, all ...lu.Medium) *portal {
	v.Helper()
	return v.portal(cfg, &iscsitarget.Target{Name: diskName, Device: v.units(all...)})
}

// ramDisk is storage that keeps what is written.
type ramDisk struct {
	identity block.Identity
	hold     chan struct{} // I/O ends when it is closed; nil: at once
	held     atomic.Int32  // I/Os that have waited for that

	mu   sync.Mutex // guards the fields below it
	data []byte
}

func newRAMDisk() *ramDisk {
	return &ramDisk{identity: block.Identity{Disk: block.NewID(), Life: block.NewID()}, data: make([]byte, 1<<16)}
}

func (d *ramDisk) Geometry() block.Geometry {
	return block.Geometry{Size: 1 << 16, PreferredBlock: 512}
}
func (d *ramDisk) Identity() block.Identity          { return d.identity }
func (d *ramDisk) NewQueue(after func()) block.Queue { return ramQueue{d, after} }

type ramQueue struct {
	d     *ramDisk
	after func()
}

func (ramQueue) Close() error { return nil }

func (q ramQueue) Do(op block.Op, buf []byte, off, n int64, _ block.Flags, done block.Completion) bool {
	if q.d.hold == nil {
		done.Complete(q.d.do(op, buf, off, n))
		return true
	}
	q.d.held.Add(1)
	go func() {
		<-q.d.hold
		done.Complete(q.d.do(op, buf, off, n))
		q.after()
	}()
	return false
}

func (d *ramDisk) do(op block.Op, buf []byte, off, n int64) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch op {
	case block.OpRead:
		copy(buf, d.data[off:off+n])
	case block.OpWrite:
		copy(d.data[off:off+n], buf)
	}
	return 0
}

// content is what is at the beginning of the disk.
func (d *ramDisk) content(n int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]byte(nil), d.data[:n]...)
}

// talker is the initiator's end of a connection.
type talker struct {
	p      *portal
	nc     net.Conn
	name   string
	isid   byte
	tsih   uint16
	cid    uint16
	itt    uint32
	cmdSN  uint32
	maxSN  uint32
	statSN uint32
	in     []byte // what Data-Ins have brought
}

// connect connects from a host.
func (p *portal) connect(host string) *talker {
	p.v.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	nc := must(d.DialContext(p.v.Context(), "tcp", p.address))(p.v.T)
	p.v.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(patience))
	return &talker{p: p, nc: nc, name: hisName, isid: 1, cmdSN: 1}
}

// send sends a PDU. Whether it arrives is seen by what comes back.
func (i *talker) send(h *iscsi.BHS, data []byte) {
	h.SetLengths(0, len(data))
	_, _ = i.nc.Write(append(append(append([]byte(nil), h[:]...), data...), make([]byte, iscsi.Pad(len(data)))...))
}

// receive returns the next PDU, false at the end of the connection.
func (i *talker) receive() (h iscsi.BHS, data []byte, ok bool) {
	if _, err := io.ReadFull(i.nc, h[:]); err != nil {
		return h, nil, false
	}
	data = make([]byte, h.DataLen()+iscsi.Pad(h.DataLen()))
	if _, err := io.ReadFull(i.nc, data); err != nil {
		return h, nil, false
	}
	if o := h.Opcode(); o != iscsi.OpR2T && (o != iscsi.OpDataIn || h[1]&1 != 0) {
		i.statSN = binary.BigEndian.Uint32(h[24:]) + 1
	}
	return h, data[:h.DataLen()], true
}

// say sends a Login Request with pairs, and returns the response; its status is LoginTargetError if there
// is none.
func (i *talker) say(csg, nsg iscsi.Stage, transit bool, pairs ...string) (r iscsi.LoginResponse, answer map[string]string) {
	q := iscsi.LoginRequest{Transit: transit, CSG: csg, NSG: nsg, ISID: [6]byte{0x80, i.isid}, TSIH: i.tsih, CID: i.cid, CmdSN: i.cmdSN}
	var h iscsi.BHS
	q.Put(&h)
	var text []byte
	for _, s := range pairs {
		text = append(append(text, s...), 0)
	}
	i.send(&h, text)
	h, text, ok := i.receive()
	if !ok {
		return iscsi.LoginResponse{Status: iscsi.LoginTargetError}, nil
	}
	r = must(iscsi.ParseLoginResponse(&h))(i.p.v.T)
	answer = map[string]string{}
	for _, p := range must(iscsi.ParsePairs(text))(i.p.v.T) {
		answer[p.Key] = p.Value
	}
	return r, answer
}

// login logs in to the disk without authentication.
func (i *talker) login(keys ...string) iscsi.LoginStatus {
	said := append([]string{"InitiatorName=" + i.name, "TargetName=" + diskName}, keys...)
	if i.tsih == 0 { // the session is a new one
		said = append(said, "InitialR2T=Yes")
	}
	r, _ := i.say(iscsi.Operational, iscsi.FullFeature, true, said...)
	if r.Status == iscsi.LoginOK {
		i.tsih, i.maxSN = r.TSIH, r.MaxCmdSN
	}
	return r.Status
}

// mustLogin is login of one who may, and takes the first unit attention of each of so many units.
func (i *talker) mustLogin(units byte, keys ...string) *talker {
	i.p.v.Helper()
	if st := i.login(keys...); st != iscsi.LoginOK {
		i.p.v.Fatalf("login status %#x", st)
	}
	for n := range units {
		i.do(n, nil, 0, scsi.TestUnitReady)
	}
	return i
}

// start sends a command to a LUN, without data.
func (i *talker) start(lun byte, write bool, edtl uint32, cdb ...byte) (itt uint32) {
	i.itt++
	k := iscsi.Command{Final: true, Attr: iscsi.Simple, ITT: i.itt, CmdSN: i.cmdSN, ExpStatSN: i.statSN, Write: write, Read: !write && edtl > 0, EDTL: edtl, LUN: [8]byte{1: lun}}
	copy(k.CDB[:], cdb)
	i.cmdSN++
	var h iscsi.BHS
	k.Put(&h)
	i.send(&h, nil)
	return i.itt
}

// dataOut sends a Data-Out.
func (i *talker) dataOut(d iscsi.DataOut, data []byte) {
	var h iscsi.BHS
	d.ExpStatSN = i.statSN
	d.Put(&h)
	i.send(&h, data)
}

// wait returns the next PDU of a kind. What Data-Ins bring meanwhile is in i.in.
func (i *talker) wait(o iscsi.Opcode) iscsi.BHS {
	i.p.v.Helper()
	for {
		h, data, ok := i.receive()
		if !ok {
			i.p.v.Fatalf("the connection ends instead of a %v", o)
		}
		if h.Opcode() == iscsi.OpDataIn {
			i.in = append(i.in, data...)
		}
		if h.Opcode() == o || o == iscsi.OpResponse && h.Opcode() == iscsi.OpDataIn && h[1]&1 != 0 {
			return h
		}
	}
}

// do carries out a command that reads edtl bytes, or writes out in answer to one R2T.
func (i *talker) do(lun byte, out []byte, edtl uint32, cdb ...byte) scsi.Status {
	i.p.v.Helper()
	i.in = nil
	itt := i.start(lun, out != nil, max(edtl, uint32(len(out))), cdb...)
	if out != nil {
		h := i.wait(iscsi.OpR2T)
		r := must(iscsi.ParseR2T(&h))(i.p.v.T)
		i.dataOut(iscsi.DataOut{Final: true, ITT: itt, TTT: r.TTT}, out)
	}
	return scsi.Status(i.status())
}

// status waits for the status of a command.
func (i *talker) status() byte {
	i.p.v.Helper()
	h := i.wait(iscsi.OpResponse)
	return h[3]
}

// ping asks for an answer, before which all comes that the target has to say to what was sent before.
func (i *talker) ping() (before []iscsi.BHS) {
	i.p.v.Helper()
	const tag = 0x70707070
	n := iscsi.NOP{Immediate: true, ITT: tag, TTT: iscsi.NoTag, CmdSN: i.cmdSN, ExpStatSN: i.statSN}
	var h iscsi.BHS
	n.PutOut(&h)
	i.send(&h, nil)
	for {
		h, _, ok := i.receive()
		switch {
		case !ok:
			i.p.v.Fatal("a ping is not answered")
		case h.Opcode() == iscsi.OpNOPIn && h.ITT() == tag:
			return before
		}
		before = append(before, h)
	}
}

// cdb10 is a CDB of ten bytes for blocks from the beginning on.
func cdb10(op byte, blocks uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{op, 0, 0, 0, 0, 0, 0}, blocks)
}
