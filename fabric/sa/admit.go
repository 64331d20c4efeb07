package sa

import (
	"slices"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// What the enhanced trust model asks of a request before it is carried out. checks.go has one function for each decision, made of
// those below.

// identify finds whether the request is a vport's and which addresses the requester has, and reports whether it has used another's.
func (s *Server) identify(r *request) (spoofed bool) {
	own := true
	if r.grh.Present() {
		of, vport := s.portOf(r.grh.SGID)
		own = of == r.port
		switch {
		case own && r.who.VPort == 0:
			r.who.VPort = vport
		case of == nil && r.port.Router:
			r.own = append(r.own, r.grh.SGID) // of a port behind it
		}
	}
	if r.who.VPort != 0 {
		r.own = append(r.own, s.gid(r.who.VPort))
		return isSpoofed(r.opts, own, r.port.Router)
	}
	r.own = append(r.own, r.port.gid) // and its vports', for which a host may speak
	for _, a := range r.port.aliases[1:] {
		if a.guid != 0 {
			r.own = append(r.own, s.gid(a.guid))
		}
	}
	return isSpoofed(r.opts, own, r.port.Router)
}

// spoofs reports whether an SGID is not one of the authenticated port's. A router port has others' behind it.
func spoofs(o Options, own, router bool) bool { return o.CheckSGIDSpoofing && !own && !router }

func wrongKey(key, ours mad.Key) bool { return key != 0 && !key.Equal(ours) }
func rightKey(key, ours mad.Key) bool { return key != 0 && key.Equal(ours) }

// refusal returns why the enhanced trust model drops a request, or 0.
func (r *request) refusal() Reason {
	if !r.opts.EnhancedTrustModel {
		return 0
	}
	switch {
	case !mayAsk(r):
		return NotAllowed
	case r.changes() && r.Attribute == mad.AttrGUIDInfoRecord && !vportMayChangeGUIDs(r.opts, r.who.VPort != 0):
		return GUIDInfoByVPort
	case r.changes() && r.Attribute == mad.AttrGUIDInfoRecord && !mayChangeGUIDs(r.opts, r.trusted):
		return UntrustedGUIDInfo
	case r.isProxy() && !mayBeProxy(r.opts, r.trusted):
		return UntrustedProxy
	}
	return 0
}

// changes reports whether the request is a Set or a Delete.
func (r *request) changes() bool { return r.Method == mad.MethodSet || r.Method == mad.MethodDelete }

// inSet reports whether the untrusted may make a request, or it is trusted. Set and Delete of GUIDInfoRecord have options of
// their own.
func inSet(r *request) bool {
	get, change := r.Method == mad.MethodGet, r.changes()
	switch r.Attribute {
	case mad.AttrMCMemberRecord, mad.AttrServiceRecord:
		return get || change || r.trusted
	case mad.AttrPathRecord:
		return get || r.Method == mad.MethodGetTable && pointToPoint(r.ComponentMask) || r.trusted
	case mad.AttrClassPortInfo:
		return get || r.trusted
	case mad.AttrInformInfo:
		return r.Method == mad.MethodSet && !asksForSecurity(r) || r.trusted
	case mad.AttrGUIDInfoRecord:
		return change || r.trusted
	}
	return r.trusted
}

// pointToPoint reports whether a path's source and destination are both given.
func pointToPoint(m mad.Mask) bool {
	return m&(mad.PathMaskSGID|mad.PathMaskSLID) != 0 && m&(mad.PathMaskDGID|mad.PathMaskDLID) != 0
}

// asksForSecurity reports whether an InformInfo is about a security trap, which the requester may not see. A subscription to all
// traps is not: the untrusted get those of them that they may see.
func asksForSecurity(r *request) bool {
	i, err := mad.ParseInformInfo(r.Data[:mad.InformInfoLen])
	return err == nil && isSecurity(i) && !maySeeSecurity(r.trusted)
}

// isSecurity reports whether a subscription is to security traps alone.
func isSecurity(i mad.InformInfo) bool {
	return i.Generic != 0 && mad.SecurityTrap(i.TrapNumber) || i.Type == uint16(mad.NoticeSecurity)
}

func guidInfoOfUntrusted(o Options, trusted bool) bool { return o.AllowUntrustedGUIDInfoRec || trusted }
func guidInfoOfVPort(o Options, vport bool) bool       { return o.AllowGUIDInfoRecByVF || !vport }
func proxyOfUntrusted(o Options, trusted bool) bool    { return o.AllowUntrustedProxyRequests || trusted }

// isProxy reports whether the request would change what is registered for another port.
func (r *request) isProxy() bool {
	if !r.changes() {
		return false
	}
	switch r.Attribute {
	case mad.AttrMCMemberRecord:
		m, err := mad.ParseMCMemberRecord(r.Data[:mad.MCMemberRecordLen])
		return err == nil && !r.owns(m.PortGID)
	case mad.AttrServiceRecord:
		v, err := mad.ParseServiceRecord(r.Data[:mad.ServiceRecordLen])
		return err == nil && !r.owns(v.GID)
	case mad.AttrGUIDInfoRecord:
		g, err := mad.ParseGUIDInfoRecord(r.Data[:mad.GUIDInfoRecordLen])
		return err == nil && !isOwnLID(g.LID, r.port.LID)
	}
	return false
}

// owns reports whether a GID is one of the requester's addresses.
func (r *request) owns(g mad.GID) bool { return slices.Contains(r.own, g) }

// speaksFor reports whether what another requester has registered is also this one's to change: its own, or a host's vports'.
func (r *request) speaksFor(owner Requester) bool {
	return owner == r.who || owner.GUID == r.who.GUID && r.who.VPort == 0
}

// overLimit reports whether one more of what the requester has exceeds an option, which counts where the model is on.
func (r *request) overLimit(has, limit int) bool {
	return r.opts.EnhancedTrustModel && limit > 0 && !withinLimit(has, limit)
}

func below(has, limit int) bool { return has < limit }
