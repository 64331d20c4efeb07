package directory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/mad"
	election "github.com/ironwarp/ironwarp/fabric/manager"
	"github.com/ironwarp/ironwarp/internal/rate"
)

// member is a host as one of a fabric: it has a stream with each manager, and makes its requests of the master.
type member struct {
	d        *Directory
	self     Self
	keep     *keeper // this host's own directory, nil if it keeps none
	call     *calls
	wake     chan struct{} // capacity 1: services, or the master, have changed
	managers []*manager

	mu sync.Mutex // guards the fields below it, and those of managers that say so
}

// manager is one as a member sees it.
type manager struct {
	Manager

	// The following are guarded by member.mu.
	port    *port // nil: there is no stream with it
	info    mad.SMInfo
	known   bool  // info is
	problem error // why there is no stream
	events  rate.Bucket
	lost    bool // it has told more events than this host looks at
}

func newMember(d *Directory, self Self, managers []Manager, keep *keeper) *member {
	m := &member{d: d, self: self, keep: keep, call: newCalls(), wake: make(chan struct{}, 1)}
	for _, one := range managers {
		m.managers = append(m.managers, &manager{Manager: one})
	}
	return m
}

// run works until ctx ends.
func (m *member) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, one := range m.managers {
		if one.Peer == "" {
			wg.Go(func() { m.stayLocal(ctx, one) })
		} else {
			wg.Go(func() { m.stayConnected(ctx, one) })
		}
	}
	wg.Go(func() { m.announce(ctx) })
	wg.Wait()
}

// stayConnected has a stream with a manager at all times.
func (m *member) stayConnected(ctx context.Context, one *manager) {
	for pause := redialMin; ; pause = min(2*pause, redialMax) {
		p := newPort(one.GUID)
		dctx, cancel := context.WithTimeout(ctx, dialTime)
		l, err := m.d.cfg.Dial(dctx, one.Peer, p)
		cancel()
		if err == nil {
			p.link = l
			lctx, cancel := context.WithCancel(ctx)
			polled := m.connected(lctx, one, p)
			p.run(ctx, func(packet mad.Packet) { m.receive(p, packet) })
			cancel()
			<-polled
			err = fmt.Errorf("the stream with the manager has ended: %w", l.Err())
			pause = redialMin
		}
		m.disconnected(one, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// stayLocal is the way to this host's own directory.
func (m *member) stayLocal(ctx context.Context, one *manager) {
	p := newPort(one.GUID)
	m.keep.attach(p)
	polled := m.connected(ctx, one, p)
	defer func() { <-polled }()
	for {
		select {
		case packet := <-p.out:
			m.keep.receive(m.self.GUID, packet)
		case packet := <-p.in:
			m.receive(p, packet)
		case <-ctx.Done():
			return
		}
	}
}

// connected notes that there is a stream with a manager, and has it asked what it is until ctx ends.
func (m *member) connected(ctx context.Context, one *manager, p *port) (polled <-chan struct{}) {
	m.mu.Lock()
	one.port, one.problem, one.known = p, nil, false
	m.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.poll(ctx, one, p)
	}()
	return done
}

// disconnected notes why there is no stream with a manager.
func (m *member) disconnected(one *manager, err error) {
	m.mu.Lock()
	one.port, one.problem, one.known = nil, err, false
	m.mu.Unlock()
	if !errors.Is(err, context.Canceled) {
		m.d.cfg.Log.Warn("no stream with a manager of the fabric", "manager", one.Identity, "error", err)
	}
	m.poke()
}

func (m *member) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// poll asks a manager again and again what it is.
func (m *member) poll(ctx context.Context, one *manager, p *port) {
	for {
		info, err := m.askSMInfo(ctx, p)
		m.mu.Lock()
		change := one.known != (err == nil) || one.info.State != info.State || one.info.Priority != info.Priority
		one.known, one.info = err == nil, info
		m.mu.Unlock()
		if change {
			m.poke()
		}
		m.tellLost(p)
		select {
		case <-ctx.Done():
			return
		case <-time.After(m.pollPause()):
		}
	}
}

// pollPause is when a manager is asked again what it is.
func (m *member) pollPause() time.Duration {
	if _, err := m.master(); err != nil {
		return pollEager
	}
	return pollEvery
}

func (m *member) askSMInfo(ctx context.Context, of *port) (info mad.SMInfo, err error) {
	smp := mad.SMP{Header: mad.Header{Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: mad.MethodGet, Attribute: mad.AttrSMInfo}}
	if m.keep != nil { // a manager's request is judged by its M_Key; who is none needs no key for this
		smp.MKey, _ = m.keep.portKey(of.guid)
	}
	got, err := m.call.ask(ctx, of, m.packet(of, 0, smp.MAD()))
	if err != nil {
		return info, err
	}
	answer, err := mad.ParseSMP(&got)
	if err == nil && answer.Status != mad.StatusOK {
		err = &StatusError{mad.MethodGet, mad.AttrSMInfo.Name(mad.ClassSubn), answer.Status}
	}
	if err == nil {
		info, err = mad.ParseSMInfo(answer.Data[:mad.SMInfoLen])
	}
	return info, err
}

// packet is a MAD to a manager, from a vport of this host, or from the host itself.
func (m *member) packet(to *port, vport mad.GUID, b mad.MAD) mad.Packet {
	from := m.self.GUID
	if vport != 0 {
		from = vport
	}
	return mad.Packet{GRH: mad.GRH{HopLimit: 1, SGID: gid(from), DGID: gid(to.guid)}, MAD: b}
}

func gid(g mad.GUID) mad.GID { return mad.MakeGID(mad.LinkLocalPrefix, g) }

// master is the manager that requests are made of: of those that say that they are the master, the one with the highest priority, and of equal ones that with the
// lower GUID.
func (m *member) master() (*port, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if best := m.masterLocked(); best != nil {
		return best.port, nil
	}
	return nil, ErrNoMaster
}

func (m *member) masterLocked() (best *manager) {
	for _, one := range m.managers {
		if one.port != nil && one.known && one.info.State == mad.SMMaster && (best == nil || outranks(one, best)) {
			best = one
		}
	}
	return best
}

func outranks(a, b *manager) bool {
	return a.info.Priority > b.info.Priority || a.info.Priority == b.info.Priority && a.GUID < b.GUID
}

// receive deals with a message of a manager.
func (m *member) receive(from *port, packet mad.Packet) {
	h := packet.MAD.Header()
	switch {
	case h.Method.Response():
		reply, send, ok := m.call.take(from, &packet.MAD)
		if send {
			from.send(m.packet(from, 0, reply))
		}
		if !ok && h.Class == mad.ClassSubn && h.Attribute == mad.AttrSMInfo {
			m.d.manages().answered(m.requester(from), &packet.MAD)
		}
	case h.Class == mad.ClassSubnAdm && h.Method == mad.MethodReport && h.Attribute == mad.AttrNotice:
		m.report(from, &packet.MAD)
	case h.Class == mad.ClassSubn:
		if answer, ok := m.d.manages().handle(m.requester(from), &packet); ok {
			from.send(m.packet(from, 0, answer))
		}
	}
}

// requester is the manager at the other end of a port.
func (m *member) requester(p *port) agent.Requester {
	i := slices.IndexFunc(m.managers, func(one *manager) bool { return one.GUID == p.guid })
	return agent.Requester{Name: m.managers[i].Identity, GUID: p.guid, Manager: true}
}

// sendToManagers sends what the election has for other managers.
func (m *member) sendToManagers(out []election.Outgoing) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range out {
		for _, one := range m.managers {
			if one.GUID == o.To && one.port != nil {
				one.port.send(m.packet(one.port, 0, o.SMP.MAD()))
			}
		}
	}
}

// sendTraps sends the agent's traps to the master. Without one they are due again.
func (m *member) sendTraps(traps []mad.SMP) {
	at, err := m.master()
	for i := range traps {
		if err == nil {
			at.send(m.packet(at, 0, traps[i].MAD()))
		}
	}
}

// report takes an event, and says that it has come.
func (m *member) report(from *port, b *mad.MAD) {
	sa, err := mad.ParseSA(b)
	if err != nil {
		return
	}
	answer := sa.Answer(mad.StatusOK)
	answer.Data = sa.Data
	from.send(m.packet(from, 0, answer.MAD()))
	n, err := mad.ParseNotice(sa.Data[:mad.NoticeLen])
	if err != nil {
		return
	}
	if e, ok := eventOf(n); ok && m.looksAt(from) {
		e.From = from.guid
		m.d.event(e)
	}
}

// looksAt reports whether this host looks at one more event of a manager. One that tells of events without end is not to have its
// hosts work without end.
func (m *member) looksAt(from *port) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.managerLocked(from)
	ok := one.events.Take(rate.Limit{PerSecond: eventRate, Burst: eventBurst}, time.Now())
	one.lost = one.lost || !ok
	return ok
}

// tellLost notes that events of a manager have not been looked at, if there are such.
func (m *member) tellLost(of *port) {
	m.mu.Lock()
	one := m.managerLocked(of)
	lost := one.lost
	one.lost = false
	m.mu.Unlock()
	if lost {
		m.d.event(Event{Time: time.Now(), Kind: EventsLost, From: of.guid})
	}
}

// managerLocked is the manager at the other end of a port.
func (m *member) managerLocked(p *port) *manager {
	return m.managers[slices.IndexFunc(m.managers, func(one *manager) bool { return one.GUID == p.guid })]
}

// sa is the head of a request of the SA.
func (m *member) sa(method mad.Method, attr mad.Attribute, mask mad.Mask, r mad.Record) mad.SA {
	s := mad.SA{Header: mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: method, Attribute: attr}, ComponentMask: mask, Key: m.d.saKey()}
	if r != nil {
		copy(s.Data[:], r.Append(nil))
	}
	return s
}

// ask makes a request of the SA of a manager, and returns the answer's data. It fails with a *StatusError, and as calls.ask does.
func (m *member) ask(ctx context.Context, of *port, vport mad.GUID, s mad.SA) (data [mad.SADataLen]byte, err error) {
	got, err := m.call.ask(ctx, of, m.packet(of, vport, s.MAD()))
	if err != nil {
		return data, err
	}
	answer, err := mad.ParseSA(&got)
	if err == nil && answer.Status != mad.StatusOK {
		err = &StatusError{s.Method, s.Attribute.Name(mad.ClassSubnAdm), answer.Status}
	}
	return answer.Data, err
}

// table is ask for all records, of length bytes each.
func (m *member) table(ctx context.Context, of *port, vport mad.GUID, s mad.SA, length int) ([][]byte, error) {
	head, table, err := m.call.askTable(ctx, of, m.packet(of, vport, s.MAD()))
	switch {
	case err != nil:
		return nil, err
	case head.Status == mad.StatusNoRecords:
		return nil, nil
	case head.Status != mad.StatusOK:
		return nil, &StatusError{s.Method, s.Attribute.Name(mad.ClassSubnAdm), head.Status}
	}
	return mad.Rows(table, head.AttributeOffset, length)
}
