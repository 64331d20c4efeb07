package sa

import (
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// What each path has. The directory knows which ports there are, not the network between them.
const (
	pathLifeTime uint8  = 18     // about a second
	defaultPKey  uint16 = 0xffff // the default partition, full membership
)

// end is one end of a path.
type end struct {
	gid mad.GID
	lid mad.LID
}

// path returns the record of the path between two ports.
func path(from, to end) mad.PathRecord {
	return mad.PathRecord{
		SGID: from.gid, SLID: from.lid, DGID: to.gid, DLID: to.lid,
		Reversible: true, NumbPath: 1, PKey: defaultPKey,
		MTUSelector: mad.SelectExactly, MTU: mad.MTU4096,
		RateSelector: mad.SelectExactly, Rate: mad.Rate100G,
		LifeTimeSelector: mad.SelectExactly, LifeTime: pathLifeTime,
	}
}

// ends returns the ports that are up among those that a request means by a GID, a LID, both or neither.
func (s *Server) ends(gid mad.GID, byGID bool, lid mad.LID, byLID bool) (list []end) {
	if !byGID && !byLID {
		for _, p := range s.sortedPorts() {
			if p.state == portUp {
				list = append(list, end{p.gid, p.LID})
			}
		}
		return list
	}
	p := s.lids[lid]
	if byGID {
		of, _ := s.portOf(gid)
		if of == nil || byLID && of != p {
			return nil
		}
		p = of
	} else if p != nil {
		gid = p.gid
	}
	if p == nil || p.state != portUp {
		return nil
	}
	return []end{{gid, p.LID}}
}

// pathRows returns the paths that a request asks for, at most limit bytes of them and one more.
func (s *Server) pathRows(r *request, limit int) (rows []byte) {
	asked, err := mad.ParsePathRecord(r.Data[:mad.PathRecordLen])
	if err != nil {
		return nil
	}
	m := r.ComponentMask
	const compared = mad.PathMaskRawTraffic | mad.PathMaskFlowLabel | mad.PathMaskHopLimit | mad.PathMaskTClass | mad.PathMaskPKey | mad.PathMaskSL
	want := pathLayout.pattern(m&compared, asked.Append(nil))
	from := s.ends(asked.SGID, m.Has(mad.PathMaskSGID), asked.SLID, m.Has(mad.PathMaskSLID))
	if r.Method == mad.MethodGet && m&(mad.PathMaskSGID|mad.PathMaskSLID) == 0 {
		from = []end{{r.port.gid, r.port.LID}} // the requester's own
	}
	for _, to := range s.ends(asked.DGID, m.Has(mad.PathMaskDGID), asked.DLID, m.Has(mad.PathMaskDLID)) {
		for _, f := range from {
			x := path(f, to)
			start := len(rows)
			rows = x.Append(rows)
			switch {
			case !want.matches(rows[start:]), !chosen(m,
				choice{mad.PathMaskMTUSelector, mad.PathMaskMTU, asked.MTUSelector, asked.MTU, x.MTU},
				choice{mad.PathMaskRateSelector, mad.PathMaskRate, asked.RateSelector, asked.Rate, x.Rate},
				choice{mad.PathMaskLifeTimeSelector, mad.PathMaskLifeTime, asked.LifeTimeSelector, asked.LifeTime, x.LifeTime}):
				rows = rows[:start]
			case len(rows) > limit:
				return rows
			}
		}
	}
	return rows
}
