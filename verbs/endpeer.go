package verbs

import (
	"errors"

	"github.com/ironwarp/ironwarp/transport"
)

// errPeerEnded is why an association comes to nothing whose peer's were ended while it
// was dialled.
var errPeerEnded = errors.New("the associations with this peer were ended meanwhile")

// EndAssociations aborts the SCTP associations with an authenticated peer, those
// without streams included, and returns when nothing of them is left: no packet of
// theirs leaves after that. One that is being set up ends as soon as it is there. Streams on them end with their association. It is for
// who is about to take down the peer's protection; a TCP connection ends with its
// stream.
func (d *Device) EndAssociations(peer transport.Identity, why string) {
	as := &d.assocs
	as.mu.Lock()
	var ended []*association
	for a := range as.all {
		if a.assoc.Protection().Peer() == peer {
			as.retireLocked(a)
			ended = append(ended, a)
		}
	}
	for _, a := range as.dialled { // whose peer is not known before it is admitted
		if _, up := as.all[a]; !up {
			a.ended = append(a.ended, peer)
		}
	}
	as.mu.Unlock()
	for _, a := range ended {
		a.assoc.Abort(why)
		a.assoc.Close()
	}
}
