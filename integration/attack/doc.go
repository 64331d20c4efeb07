// Package attack sets a hostile peer, a hostile neighbour stream and a hostile local
// consumer on the RNIC: one file per section of RFC 5042, at least one attack
// per requirement. The peer is iwarptest's, which can send anything and shares no
// state machine with the product. directory_test.go has a hostile host at a fabric's directory, which it sends raw datagrams.
//
// Each attack names the check that stops it. Built with the tag "weakened" the same
// program makes each attack with that check switched off, and there the attack has to
// succeed: so none of them passes because it is harmless.
//
//	go test ./integration/attack
//	go test -tags weakened ./integration/attack
package attack
