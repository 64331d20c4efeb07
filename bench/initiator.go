package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// initiator is an iSCSI session that does one job: it has the job's depth of commands under way, each
// with memory of its own.
type initiator struct {
	wire   wire
	job    fioJob
	lun    int
	place  func() uint64
	memory [][]byte // of the commands, by ITT
	cmdSN  uint32
	statSN uint32
	k      iscsi.Command
}

// wire carries an initiator's PDUs.
type wire interface {
	// control sends a PDU that moves no data.
	control(h *iscsi.BHS, data []byte) error
	// command queues a command, which reads into data or writes them.
	command(k *iscsi.Command, data []byte) error
	// next sends what is queued if it has to wait, and returns the next PDU that ends a command.
	next() (*iscsi.BHS, error)
	io.Closer
}

// logIn returns an initiator of a job on a LUN.
func logIn(w wire, j fioJob, lun int, keys ...string) (*initiator, error) {
	c := &initiator{wire: w, job: j, lun: lun, place: j.places(), cmdSN: 1}
	q := iscsi.LoginRequest{Transit: true, CSG: iscsi.Operational, NSG: iscsi.FullFeature, ISID: [6]byte{0x80}, CmdSN: 1}
	rand.Read(q.ISID[1:4]) // a session that has not ended yet may be another peer's, whose place nobody takes
	var h iscsi.BHS
	q.Put(&h)
	text := iscsi.AppendPair(nil, "InitiatorName", benchInitiator)
	text = iscsi.AppendPair(text, "TargetName", benchIQN)
	for _, k := range append(keys, "InitialR2T=No", "MaxBurstLength=1048576", "MaxOutstandingR2T=4") {
		text = append(append(text, k...), 0)
	}
	if err := w.control(&h, text); err != nil {
		return nil, err
	}
	in, err := w.next()
	if err != nil {
		return nil, err
	}
	r, err := iscsi.ParseLoginResponse(in)
	switch {
	case err != nil:
		return nil, err
	case r.Status != iscsi.LoginOK || !r.Transit:
		return nil, fmt.Errorf("the target's answer to the login is %+v", r)
	}
	c.statSN = r.StatSN + 1
	return c, nil
}

// begin has the commands of an initiator that has logged in. The first gets the unit attention of a new
// session.
func (c *initiator) begin() error {
	c.memory = make([][]byte, c.job.depth)
	if err := c.send(0, [16]byte{scsi.TestUnitReady}); err != nil {
		return err
	}
	h, err := c.wire.next()
	if err != nil {
		return err
	}
	c.statSN = h.StatSN() + 1
	return nil
}

// send queues a command; its memory's length is what it transfers.
func (c *initiator) send(itt uint32, cdb [16]byte) error {
	data := c.memory[itt]
	c.k = iscsi.Command{Final: true, Attr: iscsi.Simple, LUN: [8]byte{1: byte(c.lun)}, ITT: itt, EDTL: uint32(len(data)), CmdSN: c.cmdSN, ExpStatSN: c.statSN, CDB: cdb}
	c.k.Write = len(data) > 0 && c.job.writes()
	c.k.Read = len(data) > 0 && !c.k.Write
	c.cmdSN++
	return c.wire.command(&c.k, data)
}

// sendNext queues the next command of the job.
func (c *initiator) sendNext(itt uint32) error {
	cdb := [16]byte{scsi.Read10}
	if c.job.writes() {
		cdb[0] = scsi.Write10
	}
	binary.BigEndian.PutUint32(cdb[2:], uint32(c.place()/512))
	binary.BigEndian.PutUint16(cdb[7:], uint16(c.job.size()/512))
	return c.send(itt, cdb)
}

// run does commands while more says so of those that are done.
func (c *initiator) run(more func(done int) bool) (done int, err error) {
	for itt := range c.memory {
		if err := c.sendNext(uint32(itt)); err != nil {
			return 0, err
		}
	}
	for under := len(c.memory); under > 0; {
		h, err := c.wire.next()
		if err != nil {
			return 0, err
		}
		if h[3] != byte(scsi.Good) || int(h.ITT()) >= len(c.memory) {
			return 0, fmt.Errorf("%v of command %d: status %#x", h.Opcode(), h.ITT(), h[3])
		}
		c.statSN = h.StatSN() + 1
		done++
		if !more(done) {
			under--
		} else if err := c.sendNext(h.ITT()); err != nil {
			return 0, err
		}
	}
	return done, nil
}

// ownClient has jobs on a target done by an initiator of this program, on what dial makes.
func ownClient(start startServer, dial func(ctx context.Context, address string, j fioJob) (*initiator, error)) startServer {
	return func(ctx context.Context, b *bench, dir, image string) (*blockServer, error) {
		s, err := start(ctx, b, dir, image)
		if err != nil {
			return nil, err
		}
		s.own = func(ctx context.Context, j fioJob, s *blockServer) (metrics, error) {
			c, err := dial(ctx, s.iscsi.address, j)
			if err != nil {
				return nil, err
			}
			defer c.wire.Close()
			return j.timed(s.pids, func(more func() bool) (int, error) {
				return c.run(func(int) bool { return more() })
			})
		}
		return s, nil
	}
}

const (
	// tcpSegment is the longest data segment that an initiator over TCP takes.
	tcpSegment = 256 << 10
	// firstBurst is how many bytes of a write come with the command, of those that no R2T asks for.
	firstBurst = 64 << 10
)

// tcpWire is the wire over TCP.
type tcpWire struct {
	nc     net.Conn
	rd     *bufio.Reader
	out    []byte
	digest bool
	all    [][]byte  // memory of commands, by ITT
	head   iscsi.BHS // of what is queued
	h      iscsi.BHS // of what was received
	rest   [8]byte   // padding and digest
	text   []byte
}

// overTCP returns what logs in over TCP with a value of both digests.
func overTCP(digest string) func(ctx context.Context, address string, j fioJob) (*initiator, error) {
	return func(ctx context.Context, address string, j fioJob) (*initiator, error) {
		var d net.Dialer
		nc, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		w := &tcpWire{nc: nc, rd: bufio.NewReaderSize(nc, tcpSegment), all: make([][]byte, j.depth), text: make([]byte, iscsi.LoginDataSegment)}
		c, err := logIn(w, j, 0, "HeaderDigest="+digest, "DataDigest="+digest, fmt.Sprintf("MaxRecvDataSegmentLength=%d", tcpSegment), fmt.Sprintf("FirstBurstLength=%d", firstBurst))
		if err == nil {
			w.digest = digest == "CRC32C"
			err = c.begin()
		}
		if err != nil {
			nc.Close()
			return nil, err
		}
		for i := range c.memory {
			c.memory[i] = make([]byte, j.size())
		}
		return c, nil
	}
}

func (w *tcpWire) Close() error { return w.nc.Close() }

func (w *tcpWire) control(h *iscsi.BHS, data []byte) error {
	w.queue(h, data)
	return w.flush()
}

func (w *tcpWire) command(k *iscsi.Command, data []byte) error {
	w.all[k.ITT] = data
	k.Put(&w.head)
	if !k.Write {
		data = nil
	}
	w.queue(&w.head, data[:min(len(data), firstBurst)])
	return nil
}

func (w *tcpWire) queue(h *iscsi.BHS, data []byte) {
	h.SetLengths(0, len(data))
	w.out = append(w.out, h[:]...)
	if w.digest {
		w.out = binary.LittleEndian.AppendUint32(w.out, crc32c.Checksum(h[:]))
	}
	if len(data) == 0 {
		return
	}
	at := len(w.out)
	var zero [3]byte
	w.out = append(append(w.out, data...), zero[:iscsi.Pad(len(data))]...)
	if w.digest {
		w.out = binary.LittleEndian.AppendUint32(w.out, crc32c.Checksum(w.out[at:]))
	}
}

func (w *tcpWire) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.nc.Write(w.out)
	w.out = w.out[:0]
	return err
}

func (w *tcpWire) next() (*iscsi.BHS, error) {
	for {
		if w.rd.Buffered() < iscsi.BHSLen {
			if err := w.flush(); err != nil {
				return nil, err
			}
		}
		h := &w.h
		if _, err := io.ReadFull(w.rd, h[:]); err != nil {
			return nil, err
		}
		if err := w.check(0, h[:]); err != nil {
			return nil, err
		}
		into := w.text
		itt := int(h.ITT())
		if h.Opcode() == iscsi.OpDataIn {
			if itt >= len(w.all) || int(h.BufferOffset()) > len(w.all[itt]) {
				return nil, fmt.Errorf("data for command %d, at %d", itt, h.BufferOffset())
			}
			into = w.all[itt][h.BufferOffset():]
		}
		n := h.DataLen()
		if n > len(into) {
			return nil, fmt.Errorf("%v with %d bytes", h.Opcode(), n)
		}
		if n > 0 {
			if _, err := io.ReadFull(w.rd, into[:n]); err != nil {
				return nil, err
			}
			if err := w.check(iscsi.Pad(n), into[:n]); err != nil {
				return nil, err
			}
		}
		switch h.Opcode() {
		case iscsi.OpDataIn:
			if h[1]&1 != 0 { // with status
				return h, nil
			}
		case iscsi.OpR2T:
			if err := w.answer(h); err != nil {
				return nil, err
			}
		default:
			return h, nil
		}
	}
}

// check reads what follows b: padding and, if there is one, the digest of both.
func (w *tcpWire) check(pad int, b []byte) error {
	rest := w.rest[:pad]
	if w.digest {
		rest = w.rest[:pad+4]
	}
	if _, err := io.ReadFull(w.rd, rest); err != nil {
		return err
	}
	if w.digest && binary.LittleEndian.Uint32(rest[pad:]) != crc32c.Update(crc32c.Checksum(b), rest[:pad]) {
		return iscsi.ErrDigest
	}
	return nil
}

// answer queues the data that an R2T asks for.
func (w *tcpWire) answer(h *iscsi.BHS) error {
	r, err := iscsi.ParseR2T(h)
	if err != nil {
		return err
	}
	if int(r.ITT) >= len(w.all) || int(r.Offset)+int(r.Length) > len(w.all[r.ITT]) {
		return fmt.Errorf("an R2T for bytes %d to %d of command %d", r.Offset, r.Offset+r.Length, r.ITT)
	}
	data := w.all[r.ITT][r.Offset : r.Offset+r.Length]
	d := iscsi.DataOut{LUN: r.LUN, ITT: r.ITT, TTT: r.TTT, Offset: r.Offset}
	for len(data) > 0 {
		n := min(len(data), tcpSegment)
		d.Final = n == len(data)
		d.Put(&w.head)
		w.queue(&w.head, data[:n])
		data = data[n:]
		d.Offset += uint32(n)
		d.DataSN++
	}
	return nil
}

// iscsiOwnRows are the lines without a rival.
func iscsiOwnRows() (rows []row) {
	for _, op := range []string{"READ 4 KiB", "WRITE 4 KiB"} {
		rows = append(rows, row{name: "allocations per iSCSI " + op, unit: "/op", less: true, absolute: true, ours: ref{"iscsi allocs", op},
			note: "target and initiator, at depth 32 over TCP; fewer than one in 100 commands are shown as 0"})
	}
	return rows
}

// iscsiAllocations counts the allocations of target and initiator per command.
func iscsiAllocations(ctx context.Context) (metrics, error) {
	ln, err := net.Listen("tcp", anyLoopback)
	if err != nil {
		return nil, err
	}
	m := metrics{}
	return m, withTarget(func(t *fileTarget) error {
		served := make(chan error, 1)
		ctx, cancel := context.WithCancel(ctx)
		go func() { served <- t.server.Serve(ctx, ln) }()
		defer func() {
			cancel()
			<-served
		}()
		for _, j := range fioJobs {
			if j.depth != 32 {
				continue
			}
			name := "READ 4 KiB"
			if j.writes() {
				name = "WRITE 4 KiB"
			}
			c, err := overTCP("None")(ctx, ln.Addr().String(), j)
			if err != nil {
				return err
			}
			c.wire.(*tcpWire).nc.SetDeadline(time.Now().Add(time.Minute))
			_, err = c.run(m.count(name))
			if err := c.wire.Close(); err != nil {
				return err
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
