package directory

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/sa"
)

// View is what this host's directory has, for people.
type View struct {
	Ports         []sa.PortView
	Subscriptions []sa.SubscriptionView
	GUIDs         []sa.GUIDView
	Groups        []sa.GroupView
	Drops         []sa.DropCount
}

// View is this host's own directory; ok: it keeps one.
func (d *Directory) View() (v *View, ok bool) {
	_, k := d.roles()
	if k == nil {
		return nil, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return &View{Ports: k.sa.Ports(), Subscriptions: k.sa.Subscriptions(), GUIDs: k.sa.GUIDs(), Groups: k.sa.Groups(), Drops: k.sa.Drops()}, true
}

// Totals is how much this host's own directory has; ok: it keeps one.
func (d *Directory) Totals() (t sa.Totals, ok bool) {
	_, k := d.roles()
	if k == nil {
		return t, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sa.Totals(), true
}

// Settings are those of fabric.conf, nil before Apply.
func (d *Directory) Settings() *conf.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.plan == nil {
		return nil
	}
	return d.plan.Settings
}

// Insecure lists what weakens the fabric's protection by the settings, and by the agent's keys as they are now, in words.
func (d *Directory) Insecure() []string {
	d.mu.Lock()
	plan := d.plan
	d.mu.Unlock()
	if plan == nil || len(plan.Managers) == 0 {
		return nil
	}
	lines := plan.Settings.Insecure()
	for _, line := range d.manages().insecure() {
		if !slices.ContainsFunc(lines, func(of string) bool { return strings.HasPrefix(of, line) }) {
			lines = append(lines, line) // the settings' own line says as much, and what to do
		}
	}
	return lines
}

// Routes reports whether a host is a relay, which may name others as the senders of its requests.
func (d *Directory) Routes(host mad.GUID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.plan != nil && d.plan.routes(host)
}

// Equal reports whether two plans are the same.
func (p *Plan) Equal(q *Plan) bool {
	a, b := p.Settings, q.Settings
	return p.sameHosts(q) && a.Options == b.Options && a.File == b.File && maps.Equal(a.KeyFiles, b.KeyFiles) &&
		a.Keys.M().Equal(b.Keys.M()) && a.Keys.SM().Equal(b.Keys.SM()) && a.Keys.SA().Equal(b.Keys.SA())
}

// sameHosts reports whether two plans differ in their settings alone, if at all.
func (p *Plan) sameHosts(q *Plan) bool {
	return p.Self == q.Self && p.StateDir == q.StateDir && p.Name == q.Name && slices.Equal(p.PKeys, q.PKeys) && p.Agent == q.Agent && slices.Equal(p.Managers, q.Managers) && slices.Equal(p.Routers, q.Routers)
}

// VendorEvent is the kind of event of a notice of mad.Vendor.
func VendorEvent(number uint16) EventKind {
	if k, ok := vendorEvents[number]; ok {
		return k
	}
	return EventKind(fmt.Sprintf("event %d of IronWarp", number))
}

// JoinText is how a port is a member of a multicast group.
func JoinText(state uint8) string {
	switch {
	case state&mad.JoinFull != 0:
		return "full"
	case state&mad.JoinNonMember != 0:
		return "non"
	}
	return "send-only"
}
