package capture

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/ddp/tap"
	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

// Writer writes records as packets in pcapng. The library writes the blocks; what the packets say is here.
type Writer struct {
	ng     *pcapgo.NgWriter
	peer   func(identity string) string // the name of a peer
	began  time.Time
	packet packet

	tcp   map[*tap.Stream]*connection
	ended []*tap.Stream // of tcp, the first to be forgotten first
	sctp  map[*tap.Link]*association
	links uint32               // associations that have been in it
	met   map[*tap.Stream]bool // streams of SCTP whose session has begun in the capture

	lost    uint64   // records that were dropped before the next packet
	comment []string // of the next packet
}

// About says what a capture is, for whoever finds its file.
type About struct {
	Version string
	Peer    string // empty: all
	Payload bool
	Began   time.Time
	Name    func(identity string) string // of a peer
}

// NewWriter begins a file. It fails as w does.
func NewWriter(w io.Writer, a About) (*Writer, error) {
	what := "payload of ULPs is cut off"
	if a.Payload {
		what = "with the payload of ULPs"
	}
	ng, err := pcapgo.NewNgWriterInterface(w, pcapgo.NgInterface{
		Name: "ironwarp", OS: runtime.GOOS, LinkType: layers.LinkTypeRaw,
		Description: "the RDMA streams of " + cmp.Or(a.Peer, "all peers") + ", in clear; " + what,
		Comment:     "packets are synthetic: the wire carries ESP",
	}, pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "ironwarp " + a.Version}})
	if err != nil {
		return nil, err
	}
	return &Writer{ng: ng, peer: a.Name, began: a.Began, tcp: map[*tap.Stream]*connection{}, sctp: map[*tap.Link]*association{}, met: map[*tap.Stream]bool{}}, nil
}

// write writes the records of a block, up to the caller's Writer.
func (w *Writer) write(b *block) error {
	for i := range b.records {
		r := &b.records[i]
		w.lost += r.lost
		body := b.bytes[r.from:r.to]
		var err error
		if r.link.Protocol == tap.TCP {
			err = w.segment(r, body)
		} else {
			err = w.chunk(r, body)
		}
		if err != nil {
			return err
		}
	}
	return w.ng.Flush()
}

// finish ends the file with what has been captured and dropped.
func (w *Writer) finish(now time.Time, taken, dropped uint64) error {
	err := w.ng.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{LastUpdate: now, StartTime: w.began, EndTime: now, PacketsReceived: taken + dropped, PacketsDropped: dropped})
	if err != nil {
		return err
	}
	return w.ng.Flush()
}

// put writes a packet that has been of length bytes, with what is known about it.
func (w *Writer) put(at time.Time, sent bool, b []byte, cut int) error {
	flags := &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound}
	if sent {
		flags.Direction = pcapgo.NgEpbFlagDirectionOutbound
	}
	o := pcapgo.NgPacketOptions{Flags: flags, Comments: w.comment}
	if w.lost > 0 {
		lost := w.lost
		o.DropCount = &lost
	}
	w.comment, w.lost = nil, 0
	return w.ng.WritePacketWithOptions(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(b), Length: len(b) + cut}, b, o)
}

// about is the comment of a stream's first packet.
func (w *Writer) about(r *record, late string) {
	id := printable.Text(r.link.Peer)
	c := "peer " + id
	if name := w.peer(r.link.Peer); name != "" {
		c = fmt.Sprintf("peer %s (%s)", name, id)
	}
	if l := r.link; l.Protocol == tap.SCTPUDP && l.LocalUDP != sctp.DefaultPort && l.RemoteUDP != sctp.DefaultPort {
		c += fmt.Sprintf("; UDP ports %d and %d carry SCTP, which Wireshark has to be told: Decode As", l.LocalUDP, l.RemoteUDP)
	}
	if r.kind != tap.Began && late != "" {
		c += "; " + late
	}
	w.comment = append(w.comment, c)
}

// between are the addresses of a packet of a link.
func between(l *tap.Link, sent bool) ends {
	e := ends{l.Local, l.Remote}
	if !sent {
		e = ends{l.Remote, l.Local}
	}
	return e
}

// association is an SCTP association in the file.
type association struct {
	number uint32
	dirs   [2]chunks // as dir says
}

// chunks are those of a direction.
type chunks struct {
	tsn      uint32 // of the next one
	position uint64 // that it should have
	any      bool
}

// dir is the index of a direction.
func dir(sent bool) int {
	if sent {
		return 1
	}
	return 0
}

// chunk writes a chunk of SCTP, and before the first of a stream the messages that its session began with.
func (w *Writer) chunk(r *record, body []byte) error {
	a := w.sctp[r.link]
	if a == nil {
		if len(w.sctp) >= streamsKept {
			clear(w.sctp)
		}
		w.links++
		a = &association{number: w.links}
		w.sctp[r.link] = a
		w.about(r, "")
	}
	c := &a.dirs[dir(r.sent)]
	if c.any {
		c.tsn += uint32(r.position - c.position) // what the ring has dropped
	}
	c.position, c.any = r.position+1, true
	if !w.met[r.stream] {
		if len(w.met) >= streamsKept {
			clear(w.met)
		}
		w.met[r.stream] = true
		if err := w.session(a, r, body); err != nil {
			return err
		}
	}
	ppid := uint32(sctpadapt.PPIDSegment)
	if r.kind == tap.Control {
		ppid = sctpadapt.PPIDControl
	}
	return w.data(a, r, r.sent, ppid, body, r.length)
}

// session writes the session control messages that are before r, which may be one of them.
func (w *Writer) session(a *association, r *record, body []byte) error {
	request, reply := r.stream.Startup()
	if r.kind == tap.Control && len(body) >= 4 {
		switch sctpadapt.Function(binary.BigEndian.Uint16(body[2:])) {
		case sctpadapt.FunctionInitiate, sctpadapt.FunctionEnhancedInitiate:
			request, reply = nil, nil
		case sctpadapt.FunctionAccept, sctpadapt.FunctionReject, sctpadapt.FunctionEnhancedAccept, sctpadapt.FunctionEnhancedReject:
			reply = nil
		}
	}
	for i, b := range [][]byte{request, reply} {
		if b == nil {
			continue
		}
		if err := w.data(a, r, r.stream.Initiator == (i == 0), sctpadapt.PPIDControl, b, len(b)); err != nil {
			return err
		}
	}
	return nil
}

// data writes a packet with a DATA chunk of length bytes.
func (w *Writer) data(a *association, r *record, sent bool, ppid uint32, body []byte, length int) error {
	d := dir(sent)
	c := &a.dirs[d]
	var udp *[2]uint16
	if r.link.Protocol == tap.SCTPUDP {
		udp = &[2]uint16{r.link.LocalUDP, r.link.RemoteUDP}
		if !sent {
			udp[0], udp[1] = udp[1], udp[0]
		}
	}
	tag := a.number<<1 | uint32(d)
	b, err := w.packet.sctp(between(r.link, sent), udp, tag, c.tsn+1, r.stream.Number, ppid, body, length)
	if err != nil {
		return err
	}
	c.tsn++
	cut := 0
	if length > len(body) {
		cut = length - len(body) + -length&3
	}
	return w.put(r.at, sent, b, cut)
}
