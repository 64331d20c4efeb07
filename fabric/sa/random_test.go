package sa

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// consistent finds counts that are not those of what is registered, and what is kept for nobody.
func (l *lab) consistent() {
	l.Helper()
	count := make(map[Requester]use)
	add := func(who Requester, u use) {
		c := count[who]
		c.services += u.services
		c.memberships += u.memberships
		c.subscriptions += u.subscriptions
		count[who] = c
	}
	for _, v := range l.services.of {
		add(v.owner, use{services: 1})
	}
	members := 0
	for gid, g := range l.groups.of {
		full := 0
		for _, m := range g.members {
			add(m.owner, use{memberships: 1})
			members++
			if m.join == 0 {
				l.Errorf("a member of %s is none", gid)
			}
			if m.join&(mad.JoinFull|mad.JoinSendOnlyFull) != 0 {
				full++
			}
		}
		if full == 0 || l.groups.byMLID[g.record.MLID] != g {
			l.Errorf("group %s: %d full members", gid, full)
		}
	}
	for _, sub := range l.subs.of {
		add(sub.owner, use{subscriptions: 1})
	}
	if members != l.groups.members || len(l.groups.of) != len(l.groups.byMLID) {
		l.Errorf("%d members, %d are counted", members, l.groups.members)
	}
	aliases := 0
	for guid, p := range l.ports {
		var sum use
		for v, u := range p.uses {
			if want := count[Requester{guid, v}]; want != *u {
				l.Errorf("%s %s has %+v, %+v is counted", guid, v, want, *u)
			}
			delete(count, Requester{guid, v})
			sum.services += u.services
			sum.memberships += u.memberships
			sum.subscriptions += u.subscriptions
		}
		if sum != p.used || l.lids[p.LID] != p {
			l.Errorf("%s has %+v, %+v is counted; LID %d", guid, sum, p.used, p.LID)
		}
		for _, a := range p.aliases[1:] {
			if a.guid != 0 {
				if aliases++; l.aliases[a.guid] != p {
					l.Errorf("alias %s of %s", a.guid, guid)
				}
			}
		}
		if len(p.outbox.sent) > reportWindow || len(p.outbox.queue) > maxReports+1 || p.state != portUp && len(p.outbox.sent)+len(p.outbox.queue) > 0 {
			l.Errorf("%s: %d and %d reports", guid, len(p.outbox.sent), len(p.outbox.queue))
		}
	}
	inRanges := 0
	for _, n := range l.ranges {
		inRanges += n
	}
	if inRanges != len(l.ports) {
		l.Errorf("%d ports are in ranges, of %d", inRanges, len(l.ports))
	}
	for who, u := range count {
		l.Errorf("%v is not known and has %+v", who, u)
	}
	if aliases != len(l.aliases) || len(l.lids) != len(l.ports) {
		l.Errorf("%d aliases, %d are known; %d LIDs of %d ports", aliases, len(l.aliases), len(l.lids), len(l.ports))
	}
}

// FuzzServer has hosts send anything, come and go: what is counted stays what there is, and no port gets what
// is not its own.
func FuzzServer(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19})
	f.Add([]byte("\x02\x31\x00\xff\x01\x02\x31\x00\xff\x02\x15\x31\x00\xff\x01\x02\x38\x01\xff\x01"))
	for seed := range uint64(200) {
		script := make([]byte, 2000)
		rand.NewChaCha8([32]byte{byte(seed)}).Read(script)
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		l := newLab(t, model, func(o *Options) { o.MaxNumSrvcs = 5 })
		next := func() byte {
			if len(script) == 0 {
				return 0
			}
			b := script[0]
			script = script[1:]
			return b
		}
		hosts := []mad.GUID{alpha, beta, gamma, relay}
		gids := []mad.GUID{alpha, beta, gamma, relay, vport, vport2, 0x777, manager}
		for range 300 {
			if len(script) == 0 {
				break
			}
			who := hosts[next()%4]
			switch op := next(); {
			case op < 8:
				l.down(who)
			case op < 16:
				l.up(Port{GUID: who, Name: "again", Router: who == relay})
			case op < 24:
				l.wait(time.Duration(next()%40) * time.Second)
			case op < 40: // any bytes
				var m mad.MAD
				m[0], m[1], m[2] = mad.BaseVersion, byte(mad.ClassSubnAdm), mad.SAClassVersion
				for i := range script {
					m[(3+i)%mad.MADLen] = script[i]
				}
				l.sent = append(l.sent, l.Handle(l.now, Requester{GUID: who}, mad.Packet{MAD: m})...)
			default:
				l.random(who, gids, next)
			}
			l.sent = nil
		}
		l.consistent()
		l.wait(time.Second)
		for _, g := range append(hosts, manager) {
			l.down(g)
		}
		l.wait(deadAfter + transferTimeout)
		if len(l.ports) != 0 || len(l.aliases) != 0 || len(l.services.of) != 0 || len(l.groups.of) != 0 || len(l.subs.of) != 0 || l.transferBytes != 0 || len(l.waiting) != 0 {
			t.Errorf("when all hosts are gone there are %d services, %d groups, %d subscriptions", len(l.services.of), len(l.groups.of), len(l.subs.of))
		}
	})
}

// random sends a request that is mostly well-formed.
func (l *lab) random(who mad.GUID, gids []mad.GUID, next func() byte) {
	a := by(who)
	if x := next(); x < 64 {
		a.sgid = gidOf(gids[int(x)%len(gids)])
	}
	if next() < 32 {
		a = a.trusted()
	}
	at := gids[int(next())%len(gids)]
	if next() < 128 {
		at = who
	}
	n := next() % 8
	lid := mad.LID(1 + next()%6)
	switch next() % 8 {
	case 0, 1:
		v := serviceAt(uint64(n), at, "docs")
		if v.Lease = uint32(next()); v.Lease > 200 {
			v.Lease = mad.ServiceLeaseInfinite
		}
		a = a.setService(v)
	case 2:
		a = a.deleteService(serviceAt(uint64(n), at, ""))
	case 3:
		a = a.join(mad.GID{0xff, 15: n % 3}, at, next()&15)
	case 4:
		a = a.leave(mad.GID{0xff, 15: n % 3}, at, next()&15)
	case 5:
		i := toEverything()
		i.Subscribe = next() % 2
		a = a.inform(i)
	case 6:
		m := mad.MethodSet
		if next()%2 == 0 {
			m = mad.MethodDelete
		}
		a = a.guids(m, lid, 0, mad.GUIDInfoMaskGUID(int(n)), 0, mad.GUID(next()), mad.GUID(next()))
	case 7:
		a = a.table(mad.AttrServiceRecord, 0, nil).trusted()
	}
	l.tid++
	out := l.Handle(l.now, a.from, a.packet(l.tid))
	for _, o := range out {
		if m, _ := mad.ParseSA(&o.Packet.MAD); m.Method != mad.MethodReport && o.To != who {
			l.Errorf("the answer to %s goes to %s", who, o.To)
		}
	}
}
