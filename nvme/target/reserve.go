package target

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/nvme"
)

// reservations is the state of a namespace's reservation (NVMe 8.8). Hosts are known by their identifiers. It has no I/O
// but for load.
type reservations struct {
	keys       map[block.ID]uint64 // who is registered
	holder     block.ID            // who reserved; zero if there is no reservation
	kind       nvme.ReservationType
	generation uint32
	kept       bool // PTPL
}

// kept is what a file has of it.
type kept struct {
	Keys   map[block.ID]uint64  `json:"keys"`
	Holder block.ID             `json:"holder"`
	Type   nvme.ReservationType `json:"type,omitempty"`
}

// load reads the file. One that is not there means that there is nothing.
func (p *reservations) load(path string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var k kept
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	if _, registered := k.Keys[k.Holder]; err == nil && !k.Holder.IsZero() && (!registered || !k.Type.Known()) {
		err = fmt.Errorf("%s: the reservation is of nobody who is registered", path)
	}
	if err != nil {
		return fmt.Errorf("nvme: reservations: %w", err)
	}
	if len(k.Keys) > 0 {
		*p = reservations{keys: k.Keys, holder: k.Holder, kind: k.Type, kept: true}
	}
	return nil
}

func (p *reservations) toKeep() kept {
	if !p.kept {
		return kept{Keys: map[block.ID]uint64{}}
	}
	return kept{p.keys, p.holder, p.kind}
}

// reserved reports whether there is a reservation.
func (p *reservations) reserved() bool { return !p.holder.IsZero() }

// holds reports whether a host holds the reservation.
func (p *reservations) holds(h block.ID) bool {
	_, registered := p.keys[h]
	return p.reserved() && (p.holder == h || p.kind.AllRegistrants() && registered)
}

// excludes reports whether a reservation keeps a host away (NVMe 8.8).
func (p *reservations) excludes(h block.ID, writes bool) bool {
	if !p.reserved() || p.holds(h) || !writes && !p.kind.KeepsReads() {
		return false
	}
	_, registered := p.keys[h]
	return !(registered && p.kind.Registrants())
}

// change is what one command does to the state.
type change struct {
	p       reservations
	me      block.ID
	q       nvme.Reservation
	key     uint64
	other   uint64 // NRKEY or PRKEY
	canKeep bool
	changed bool
	removed []block.ID
	notices map[block.ID]nvme.ReservationNotice
}

func (x *change) tell(h block.ID, n nvme.ReservationNotice) {
	if h != x.me && x.notices[h] == 0 {
		x.notices[h] = n
	}
}

func (x *change) tellAll(n nvme.ReservationNotice) {
	for h := range x.p.keys {
		x.tell(h, n)
	}
}

// apply changes the state by a command.
func (x *change) apply(op nvme.Opcode) nvme.Status {
	if op == nvme.ReservationRegister {
		return x.register()
	}
	mine, registered := x.p.keys[x.me]
	if !registered || !x.q.IgnoreKey && x.key != mine {
		return nvme.ReservationConflict | nvme.DNR
	}
	if op == nvme.ReservationRelease {
		return x.release()
	}
	return x.acquire()
}

// register is Reservation Register (NVMe 6.11).
func (x *change) register() nvme.Status {
	p := &x.p
	mine, registered := p.keys[x.me]
	switch x.q.Persist {
	case 0:
	case 2:
		x.changed = x.changed || p.kept
		p.kept = false
	case 3:
		if !x.canKeep {
			return nvme.InvalidField | nvme.DNR
		}
		x.changed = x.changed || !p.kept
		p.kept = true
	default:
		return nvme.InvalidField | nvme.DNR
	}
	switch x.q.Action {
	case nvme.ActionRegister:
		if registered {
			if mine != x.other {
				return nvme.ReservationConflict | nvme.DNR
			}
			return nvme.Success
		}
		if len(p.keys) == maxRegistrants {
			return nvme.InternalError | nvme.DNR
		}
		p.keys[x.me] = x.other
	case nvme.ActionUnregister:
		if !registered || !x.q.IgnoreKey && x.key != mine {
			return nvme.ReservationConflict | nvme.DNR
		}
		x.remove(x.me)
	case nvme.ActionReplace:
		switch {
		case !x.q.IgnoreKey && (!registered || x.key != mine):
			return nvme.ReservationConflict | nvme.DNR
		case !registered && len(p.keys) == maxRegistrants:
			return nvme.InternalError | nvme.DNR
		}
		p.keys[x.me] = x.other
	default:
		return nvme.InvalidField | nvme.DNR
	}
	x.changed = true
	p.generation++
	return nvme.Success
}

// remove ends a registration, and the reservation if that was the last that held it.
func (x *change) remove(h block.ID) {
	p := &x.p
	held := p.holder == h
	delete(p.keys, h)
	switch {
	case !held:
	case p.kind.AllRegistrants() && len(p.keys) > 0:
		p.holder = slices.SortedFunc(maps.Keys(p.keys), compareIDs)[0] // any of them holds it
	default:
		p.holder = block.ID{}
		if p.kind.Registrants() {
			x.tellAll(nvme.NoticeReleased)
		}
	}
}

func compareIDs(a, b block.ID) int { return bytes.Compare(a[:], b[:]) }

// release is Reservation Release (NVMe 6.13).
func (x *change) release() nvme.Status {
	p := &x.p
	switch x.q.Action {
	case nvme.ActionRelease:
		switch {
		case !p.holds(x.me):
			return nvme.Success
		case p.kind != x.q.Type:
			return nvme.InvalidField | nvme.DNR
		}
		p.holder, x.changed = block.ID{}, true
		if p.kind.Registrants() {
			x.tellAll(nvme.NoticeReleased)
		}
	case nvme.ActionClear:
		if p.reserved() {
			x.tellAll(nvme.NoticePreempted)
		}
		p.keys, p.holder, x.changed = map[block.ID]uint64{}, block.ID{}, true
		p.generation++
	default:
		return nvme.InvalidField | nvme.DNR
	}
	return nvme.Success
}

// acquire is Reservation Acquire (NVMe 6.10).
func (x *change) acquire() nvme.Status {
	p := &x.p
	if !x.q.Type.Known() {
		return nvme.InvalidField | nvme.DNR
	}
	switch x.q.Action {
	case nvme.ActionAcquire:
		if p.reserved() {
			if !p.holds(x.me) || p.kind != x.q.Type {
				return nvme.ReservationConflict | nvme.DNR
			}
			return nvme.Success
		}
		p.holder, p.kind, x.changed = x.me, x.q.Type, true
		return nvme.Success
	case nvme.ActionPreempt, nvme.ActionPreemptAbort:
		return x.preempt()
	}
	return nvme.InvalidField | nvme.DNR
}

// preempt ends the registrations of a key, and takes the reservation over if it was held by it.
func (x *change) preempt() nvme.Status {
	p := &x.p
	all := p.reserved() && p.kind.AllRegistrants()
	takes := p.reserved() && (all && x.other == 0 || !all && p.keys[p.holder] == x.other)
	if x.other == 0 && !all && !takes {
		return nvme.InvalidField | nvme.DNR
	}
	for h, key := range p.keys {
		if h != x.me && (key == x.other || all && x.other == 0) {
			x.removed = append(x.removed, h)
		}
	}
	if len(x.removed) == 0 && !takes {
		return nvme.ReservationConflict | nvme.DNR
	}
	was := p.kind
	if takes {
		p.holder, p.kind = x.me, x.q.Type
	}
	for _, h := range x.removed {
		x.tell(h, nvme.NoticeRegistrationPreempted)
		x.remove(h)
	}
	if takes && was != x.q.Type && was.Registrants() {
		x.tellAll(nvme.NoticeReleased)
	}
	p.generation++
	x.changed = true
	return nvme.Success
}

// reserve runs Reservation Register, Acquire and Release. What it changes is in the file, if it is to be, before it ends.
// Until then other commands are judged by what was before. Preempt and Abort ends when nothing of those who were
// preempted is at the storage any more.
func (k *command) reserve(x *controller, ns *Namespace) {
	key, other, err := nvme.ParseKeys(k.buf)
	if err != nil {
		k.fail(nvme.InvalidField | nvme.DNR)
		return
	}
	q := k.cmd.Reservation()
	op := k.cmd.Opcode()
	go func() {
		ns.editing.Lock()
		defer ns.editing.Unlock()
		r := change{me: x.host.HostID, q: q, key: key, other: other, canKeep: ns.cfg.Reservations != "", notices: map[block.ID]nvme.ReservationNotice{}}
		st := ns.edit(&r, func() nvme.Status { return r.apply(op) })
		if st == nvme.Success {
			x.srv.notify(x, k.cmd.NSID(), r.notices)
		}
		if st == nvme.Success && op == nvme.ReservationAcquire && q.Action == nvme.ActionPreemptAbort {
			ns.whenDrained(r.removed, func() { k.endLater(nvme.Success) })
			return
		}
		k.endLater(st)
	}()
}

// edit has apply change a copy of the state, which is written to the file and then in force. The caller has locked
// editing.
func (n *Namespace) edit(r *change, apply func() nvme.Status) nvme.Status {
	n.mu.Lock()
	was := n.pr
	gone := n.gone
	n.mu.Unlock()
	if gone {
		return nvme.NamespaceNotReady
	}
	r.p = was
	r.p.keys = maps.Clone(was.keys)
	if st := apply(); st != nvme.Success || !r.changed {
		return st
	}
	if n.cfg.Reservations != "" && (was.kept || r.p.kept) {
		if wholefile.WriteJSON(n.cfg.Reservations, r.p.toKeep()) != nil {
			return nvme.InternalError
		}
	}
	n.mu.Lock()
	n.pr = r.p
	n.mu.Unlock()
	return nvme.Success
}

// notify tells hosts what has become of their registrations.
func (s *Server) notify(x *controller, nsid uint32, notices map[block.ID]nvme.ReservationNotice) {
	s.mu.Lock()
	all := s.ofLocked(x.sub)
	s.mu.Unlock()
	for _, c := range all {
		if n := notices[c.host.HostID]; n != 0 {
			c.reservationChanged(nsid, n)
		}
	}
}

// report runs Reservation Report (NVMe 6.12).
func (k *command) report(x *controller, ns *Namespace) {
	n := (uint64(k.cmd.DWord(10)) + 1) * 4
	switch {
	case n > maxTransfer:
		k.fail(nvme.InvalidField | nvme.DNR)
		return
	case k.cmd.DWord(11)&1 == 0: // hosts have identifiers of 128 bits
		k.fail(nvme.HostIDInconsistent | nvme.DNR)
		return
	}
	controllers := map[block.ID]uint16{}
	x.srv.mu.Lock()
	for _, c := range x.srv.ofLocked(x.sub) {
		controllers[c.host.HostID] = c.id
	}
	x.srv.mu.Unlock()
	ns.mu.Lock()
	p := &ns.pr
	var all []nvme.Registrant
	for _, h := range slices.SortedFunc(maps.Keys(p.keys), compareIDs) {
		id, connected := controllers[h]
		if !connected {
			id = nvme.DynamicController
		}
		all = append(all, nvme.Registrant{Controller: id, Holds: p.holds(h), Key: p.keys[h], Host: h})
	}
	kind := p.kind
	if !p.reserved() {
		kind = 0
	}
	b := nvme.AppendReport(nil, p.generation, kind, p.kept, all)
	ns.mu.Unlock()
	k.answer(b, 0, uint32(n))
}

func (n *Namespace) keepsReservations() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pr.kept
}

// keepReservations sets whether reservations persist through power loss.
func (k *command) keepReservations(x *controller, on bool) {
	ns := x.namespaces()[k.cmd.NSID()]
	switch {
	case ns == nil:
		k.fail(nvme.InvalidNamespace | nvme.DNR)
		return
	case on && ns.cfg.Reservations == "":
		k.fail(nvme.FeatureNotChangeable | nvme.DNR)
		return
	}
	go func() {
		ns.editing.Lock()
		defer ns.editing.Unlock()
		r := change{}
		k.endLater(ns.edit(&r, func() nvme.Status {
			r.changed, r.p.kept = r.p.kept != on, on
			return nvme.Success
		}))
	}()
}
