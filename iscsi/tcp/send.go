package tcp

import (
	"encoding/binary"

	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/iscsi"
)

// SendControl implements iscsi.Datamover.
func (c *Conn) SendControl(o *iscsi.Out) { c.queue(o, false) }

// PutData implements iscsi.Datamover.
func (c *Conn) PutData(o *iscsi.Out) { c.queue(o, true) }

// queue queues a PDU or, as input, the data of a command.
func (c *Conn) queue(o *iscsi.Out, input bool) {
	o.Input = input
	c.mu.Lock()
	c.queueLocked(o)
	c.mu.Unlock()
}

func (c *Conn) queueLocked(o *iscsi.Out) {
	o.Queued = true
	c.queued.Push(o)
}

// GetData implements iscsi.Datamover: it sends the R2T.
func (c *Conn) GetData(g *iscsi.Get) {
	g.Sequence = iscsi.NewSequence(g.R2T.Offset, g.R2T.Length)
	o := &g.Out
	o.Data, o.Input = nil, false
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.freeTTT); n > 0 {
		g.R2T.TTT = c.freeTTT[n-1]
		c.freeTTT = c.freeTTT[:n-1]
		c.gets[g.R2T.TTT&slotMask] = g
	} else {
		g.R2T.TTT = uint32(len(c.gets))
		c.gets = append(c.gets, g)
	}
	g.R2T.Put(&o.BHS)
	c.queueLocked(o)
}

// Flush implements iscsi.Datamover. One goroutine at a time sends, for all; when the socket is
// full, one that may wait takes over. Before Run nothing is sent: nobody could be told.
func (c *Conn) Flush() {
	c.mu.Lock()
	if c.flushing || c.queued.Empty() || c.upper == nil {
		c.mu.Unlock()
		return
	}
	if c.dead {
		rest := c.queued.Take()
		c.mu.Unlock()
		c.giveBack(rest)
		return
	}
	c.flushing = true
	for round := 0; ; round++ {
		batch := c.takeLocked()
		c.mu.Unlock()
		c.load(&batch)
		done := false
		if round < maxRounds {
			var err error
			if done, err = c.sock.TryFlush(); err != nil {
				c.broken(batch)
				return
			}
		}
		if !done {
			c.batch = batch
			go c.loop()
			return
		}
		c.giveBack(batch)
		if !c.lockIfMore() {
			return
		}
	}
}

// sendLoop is the goroutine that waits for a full socket. It ends when nothing is queued any more.
func (c *Conn) sendLoop() {
	for batch := c.batch; ; {
		if err := c.sock.Flush(); err != nil {
			c.broken(batch)
			return
		}
		c.giveBack(batch)
		if !c.lockIfMore() {
			return
		}
		batch = c.takeLocked()
		c.mu.Unlock()
		c.load(&batch)
	}
}

// lockIfMore returns true, with c.mu locked, if more is queued; otherwise flushing has ended.
func (c *Conn) lockIfMore() bool {
	c.mu.Lock()
	if !c.queued.Empty() {
		return true
	}
	c.flushing = false
	c.change.Broadcast()
	c.mu.Unlock()
	return false
}

// broken ends the connection after a failed send.
func (c *Conn) broken(batch iscsi.OutQueue) {
	c.sock.Discard()
	// Run's goroutine may be here, in the middle of a read, for which Close would wait.
	c.ending.Store(true)
	c.nc.SetReadDeadline(past)
	c.giveBack(batch)
	c.mu.Lock()
	c.dead = true
	rest := c.queued.Take()
	c.flushing = false
	c.change.Broadcast()
	c.mu.Unlock()
	c.giveBack(rest)
}

// takeLocked takes what is queued, for about maxBatch bytes.
func (c *Conn) takeLocked() (batch iscsi.OutQueue) {
	for n := 0; !c.queued.Empty() && n < maxBatch; {
		o := c.queued.Pop()
		n += len(o.Data)
		batch.Push(o)
	}
	return batch
}

// giveBack gives back what was sent, or never will be. An R2T may be used again, by the goroutine that
// gets the answer to it, from the moment at which it is not queued any more.
func (c *Conn) giveBack(batch iscsi.OutQueue) {
	for o := batch.Pop(); o != nil; o = batch.Pop() {
		c.mu.Lock()
		o.Queued = false
		c.change.Broadcast()
		c.mu.Unlock()
		c.upper.SentNotify(o)
	}
}

// load hands a batch to the socket's writer. The arena is free: no batch is under way.
func (c *Conn) load(batch *iscsi.OutQueue) {
	c.arena = c.arena[:0]
	for o := range batch.All() {
		if !o.Input {
			c.pdu(&o.BHS, o.Data)
			continue
		}
		for sn := o.From; sn != o.To; sn++ {
			p := o.Pieces.At(sn)
			h := o.BHS
			h.SetPiece(p, c.recovers)
			c.pdu(&h, o.Data[p.Offset:p.Offset+p.Len])
		}
	}
}

// pdu hands one PDU to the writer: the header from the arena, the data from where they are.
func (c *Conn) pdu(h *iscsi.BHS, data []byte) {
	at := len(c.arena)
	c.arena = append(c.arena, h[:]...)
	(*iscsi.BHS)(c.arena[at:]).SetLengths(0, len(data))
	if c.headerCRC {
		c.arena = binary.LittleEndian.AppendUint32(c.arena, crc32c.Checksum(c.arena[at:]))
	}
	c.sock.Append(c.arena[at:])
	if len(data) == 0 {
		return
	}
	c.sock.Append(data)
	at = len(c.arena)
	var zero [3]byte
	c.arena = append(c.arena, zero[:iscsi.Pad(len(data))]...)
	if c.dataCRC {
		c.arena = binary.LittleEndian.AppendUint32(c.arena, crc32c.Update(crc32c.Checksum(data), c.arena[at:]))
	}
	c.sock.Append(c.arena[at:])
}
