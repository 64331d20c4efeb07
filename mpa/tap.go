package mpa

import (
	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/tap"
)

// beginTap makes the connection one that can be watched, and shows that it is up.
func (c *Conn) beginTap() {
	l := c.cfg.Link
	if l == nil {
		return
	}
	c.tap, c.stream = l.Tap, &tap.Stream{Link: l, Initiator: c.p.initiator}
	c.stream.SetRequest(c.p.request)
	c.stream.SetReply(c.p.reply)
	if c.tap.On() {
		c.stream.Show(&tap.Record{Kind: tap.Began})
	}
}

// endTap shows that the connection is closed.
func (c *Conn) endTap() {
	if c.tap.On() {
		c.stream.Show(&tap.Record{Kind: tap.Ended})
	}
}

// showSent shows the FPDU in the sender's seen, which has begun at offset grid of the grid of markers, with a ULPDU of n
// bytes that hdr begins.
func (c *Conn) showSent(hdr []byte, n, grid int) {
	t := &c.tx
	r := tap.Record{Sent: true, Bytes: t.seen, Grid: grid, Position: t.shown}
	for _, b := range t.seen {
		r.Length += len(b)
	}
	r.Visible = visible(tap.Visible(hdr, n), n, r.Length, grid, c.p.txMarkers)
	t.shown += uint64(r.Length)
	c.stream.Show(&r)
	clear(t.seen)
	t.seen = t.seen[:0]
}

// showReceived shows a verified FPDU with a ULPDU of n bytes.
func (c *Conn) showReceived(fpdu []byte, grid, n int) {
	rx := &c.rx
	u := unmarked{b: fpdu, next: len(fpdu)}
	if c.p.rxMarkers {
		u.next = firstMarker(grid)
	}
	var head [lengthLen + ddp.MaxHeaderLen]byte
	have := u.read(head[:min(len(head), lengthLen+n)])
	r := tap.Record{Bytes: [][]byte{fpdu}, Length: len(fpdu), Grid: grid, Position: rx.shown}
	r.Visible = visible(tap.Visible(head[lengthLen:have], n), n, len(fpdu), grid, c.p.rxMarkers)
	rx.shown += uint64(len(fpdu))
	c.stream.Show(&r)
}

// visible is how many bytes of an FPDU of size bytes, markers included, are shown of which n bytes of the ULPDU of all bytes
// are.
func visible(n, all, size, grid int, markers bool) int {
	if n == all {
		return size // with padding and CRC
	}
	n += lengthLen
	if markers {
		n += markerLen * markersIn(grid, n)
	}
	return min(n, size)
}
