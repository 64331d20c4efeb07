package sa

import (
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// transfer is the answer to a GetTable on its way (RMPP, section 13.6): segments leave as the receiver acknowledges earlier ones.
//
//	answer -> sending -- ACK -> sending ... -> done
//	             |
//	             +-- STOP, ABORT, 30 s without ACK, port down, a third answer of the port --> done
type transfer struct {
	sender *mad.Sender
	id     uint64 // TransactionID
	to     mad.GID
	table  *sharedTable
	last   time.Time // when something was acknowledged
}

// sharedTable is the records of an answer, which several ports may be getting.
type sharedTable struct {
	rows []byte
	refs int
}

// tableID is what decides which records an answer has.
type tableID struct {
	mask    mad.Mask
	data    [mad.SADataLen]byte
	trusted bool
	version uint64
	second  int64 // as leases are shown in seconds
}

// send returns the answer to a request: one MAD, or the first segment of a table.
func (s *Server) send(r *request, a answer) []Outgoing {
	to := r.port.gid
	if r.grh.Present() {
		to = r.grh.SGID
	}
	head := r.Answer(a.status)
	if r.Method != mad.MethodGetTable || a.status != mad.StatusOK {
		copy(head.Data[:], a.records)
		return []Outgoing{s.packet(r.port, to, head.MAD())}
	}
	head.AttributeOffset = mad.Offset(a.length)
	t := s.share(r, a.records)
	if t == nil {
		busy := r.Answer(mad.StatusBusy)
		return []Outgoing{s.packet(r.port, to, busy.MAD())}
	}
	sender, err := mad.NewSender(head, t.rows)
	if err != nil { // longer than RMPP can be
		s.release(t)
		none := r.Answer(mad.StatusNoResources)
		return []Outgoing{s.packet(r.port, to, none.MAD())}
	}
	p := r.port
	p.transfers = slices.DeleteFunc(p.transfers, func(x *transfer) bool {
		again := x.id == r.TransactionID // the requester has asked anew
		if again {
			s.release(x.table)
		}
		return again
	})
	if len(p.transfers) >= maxTransfers {
		s.release(p.transfers[0].table)
		p.transfers = slices.Delete(p.transfers, 0, 1)
	}
	x := &transfer{sender: sender, id: r.TransactionID, to: to, table: t, last: r.now}
	p.transfers = append(p.transfers, x)
	return s.segments(p, x)
}

// segments returns what the receiver has room for.
func (s *Server) segments(p *port, x *transfer) (out []Outgoing) {
	for m, ok := x.sender.Next(); ok; m, ok = x.sender.Next() {
		out = append(out, s.packet(p, x.to, m))
	}
	return out
}

// transferEvent takes an ACK, STOP or ABORT.
func (s *Server) transferEvent(r *request) []Outgoing {
	p := r.port
	at := slices.IndexFunc(p.transfers, func(x *transfer) bool { return x.id == r.TransactionID })
	if at < 0 {
		return nil
	}
	x := p.transfers[at]
	err := x.sender.Acknowledge(&r.SA)
	x.last = r.now
	if err != nil || x.sender.Done() {
		s.release(x.table)
		p.transfers = slices.Delete(p.transfers, at, at+1)
		return nil
	}
	return s.segments(p, x)
}

// share returns the table with these rows, one that others are getting if it is the same, or nil if too much is under way.
func (s *Server) share(r *request, rows []byte) *sharedTable {
	id := tableID{r.ComponentMask, r.Data, r.trusted, s.services.version, r.now.Unix()}
	big := r.Attribute == mad.AttrServiceRecord && len(rows) >= shareFrom
	if big && s.lastTable != nil && s.lastTableID == id && s.lastTable.refs > 0 {
		s.lastTable.refs++
		return s.lastTable
	}
	if s.transferBytes+len(rows) > maxTransferBytes {
		return nil
	}
	t := &sharedTable{rows: rows, refs: 1}
	s.transferBytes += len(rows)
	if big {
		s.lastTable, s.lastTableID = t, id
	}
	return t
}

func (s *Server) release(t *sharedTable) {
	if t.refs--; t.refs == 0 {
		s.transferBytes -= len(t.rows)
		if s.lastTable == t {
			s.lastTable = nil
		}
	}
}

// endTransfers gives up the answers that are on their way to a port.
func (s *Server) endTransfers(p *port) {
	for _, x := range p.transfers {
		s.release(x.table)
	}
	p.transfers = nil
}

// endSilent gives up answers whose receivers are silent.
func (s *Server) endSilent(now time.Time) {
	for _, p := range s.ports {
		p.transfers = slices.DeleteFunc(p.transfers, func(x *transfer) bool {
			silent := now.Sub(x.last) >= transferTimeout
			if silent {
				s.release(x.table)
			}
			return silent
		})
	}
}
