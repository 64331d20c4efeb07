package directory

import (
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// EventKind is what has happened.
type EventKind string

// The kinds of events.
const (
	HostUp        EventKind = "host up"
	HostDown      EventKind = "host down"
	PathGone      EventKind = "path gone"
	PathBack      EventKind = "path back"
	ExportCome    EventKind = "export come"
	ExportGone    EventKind = "export gone"
	ExportResized EventKind = "export resized"
	KeyViolation  EventKind = "wrong m_key"
	// Connected and EventsLost are not the fabric's: this host hears of events from now on, or has not heard of some. Whoever goes by events looks anew.
	Connected  EventKind = "connected"
	EventsLost EventKind = "events lost"
)

// vendorEvents are those for which IBTA has no trap.
var vendorEvents = map[uint16]EventKind{
	mad.VendorExportCome: ExportCome, mad.VendorExportGone: ExportGone, mad.VendorExportResized: ExportResized,
	mad.VendorPathGone: PathGone, mad.VendorPathBack: PathBack,
}

// Event is what the directory says has happened. It is a reason to look, and never proof.
type Event struct {
	Time    time.Time
	Kind    EventKind
	From    mad.GUID // the manager that says so
	Host    mad.GUID // that is up or down, that has the export, or that has the path
	To      mad.GUID // of a path
	Service uint64   // ServiceID, of an export
	Size    uint64   // bytes
}

// eventOf is what a notice says; ok: it is of a kind that is known.
func eventOf(n mad.Notice) (e Event, ok bool) {
	e.Time = time.Now()
	if d, err := n.Export(); err == nil {
		e.Kind = vendorEvents[n.TrapNumber]
		e.Host, e.Service, e.Size = d.Port, d.ServiceID, d.Size
		return e, true
	}
	if d, err := n.Path(); err == nil {
		e.Kind = vendorEvents[n.TrapNumber]
		e.Host, e.To = d.SGID.GUID(), d.DGID.GUID()
		return e, true
	}
	if !n.Generic && n.ProducerType == mad.Vendor && n.TrapNumber == mad.VendorEventsLost {
		e.Kind = EventsLost
		return e, true
	}
	if d, err := n.GID(); err == nil {
		e.Kind = map[uint16]EventKind{mad.TrapGIDInService: HostUp, mad.TrapGIDOutOfService: HostDown}[n.TrapNumber]
		e.Host = d.GID.GUID()
		return e, e.Kind != ""
	}
	if _, err := n.MKey(); err == nil {
		e.Kind, e.Host = KeyViolation, n.IssuerGID.GUID()
		return e, true
	}
	return e, false
}
