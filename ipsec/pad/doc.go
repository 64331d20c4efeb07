// Package pad is the peer authorization database of RFC 4301 section 4.4.3: which hosts
// may have SAs with this one, how they authenticate, which flows each child SA carries
// (Peer.ChildSAs), and whether an SA that charon lists is the peer's own and carries a
// flow (Peer.Owns, Peer.Carrier). It decides and does nothing: no I/O, no state.
package pad
