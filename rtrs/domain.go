package rtrs

import "github.com/ironwarp/ironwarp/verbs"

// domains are the protection domains of a session: one for each connection, or one for
// all if the trust model shares it among streams. Number n, a connection's or a chunk's,
// belongs to domain n modulo their count.
type domains []*verbs.PD

// newDomains makes room for the domains of conns connections, and opens the first.
func newDomains(u *verbs.ULP, m verbs.TrustModel, conns int) (domains, error) {
	if shares(m) {
		conns = 1
	}
	d := make(domains, conns)
	return d, d.open(u, m, 0)
}

// open allocates the domain of connection n, unless it exists.
func (d domains) open(u *verbs.ULP, m verbs.TrustModel, n int) (err error) {
	if i := n % len(d); d[i] == nil {
		d[i], err = u.AllocPDAs(domainModel(m))
	}
	return err
}

func (d domains) of(n int) *verbs.PD { return d[n%len(d)] }

// same reports whether two numbers have the same domain.
func (d domains) same(n, m int) bool { return n%len(d) == m%len(d) }

// free deallocates the domains, which must be empty.
func (d domains) free() {
	for _, pd := range d {
		if pd != nil {
			pd.Dealloc()
		}
	}
}

// shares reports whether a session's connections share a domain.
func shares(m verbs.TrustModel) bool { return domainModel(m).Trust().ShareStreams }

// domainModel returns the model of a session's domains. In S-NT the STags of a shared
// domain would be useless, so each connection has its own domain, as in NS-NT.
func domainModel(m verbs.TrustModel) verbs.TrustModel {
	if t := m.Trust(); t.ShareStreams && !t.ShareSTags {
		return m.Alone()
	}
	return m
}

// TrustsPeer reports whether a model has remote partial trust (RFC 5042 appendix C).
func TrustsPeer(m verbs.TrustModel) bool { return m.Alone() == verbs.NSRT }
