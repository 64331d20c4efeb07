package verbs

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/ironwarp/ironwarp/transport"
)

// errPeerEnded is the error of an association that was dialled while EndAssociations ended
// those with its peer.
var errPeerEnded = errors.New("the associations with this peer were ended meanwhile")

// EndAssociations aborts the SCTP associations with an authenticated peer, including those
// without streams, and returns when they are gone: they send no packet after that. One that
// is being set up ends as soon as it is up. Streams end with their association. It is for
// callers about to take down the peer's protection; a TCP connection ends with its stream.
// With addresses only associations with one of these end.
func (d *Device) EndAssociations(peer transport.Identity, why string, at ...netip.Addr) {
	as := &d.assocs
	as.mu.Lock()
	var ended []*association
	for a := range as.all {
		if a.assoc.Protection().Peer() == peer && (len(at) == 0 || slices.Contains(at, a.assoc.Flow().Remote.Addr())) {
			as.retireLocked(a)
			ended = append(ended, a)
		}
	}
	for _, a := range as.dialled { // whose peer is not known before it is admitted
		if _, up := as.all[a]; !up && (len(at) == 0 || slices.Contains(at, a.key.remote.Addr())) {
			a.ended = append(a.ended, peer)
		}
	}
	as.mu.Unlock()
	for _, a := range ended {
		a.assoc.Abort(why)
		a.assoc.Close()
	}
}
