package verbs

import "github.com/ironwarp/ironwarp/transport"

// EndAssociations aborts the SCTP associations with an authenticated peer, those
// without streams included, and returns when nothing of them is left: no packet of
// theirs leaves after that. Streams on them end with their association. It is for
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
	as.mu.Unlock()
	for _, a := range ended {
		a.assoc.Abort(why)
		a.assoc.Close()
	}
}
