//go:build !weakened

package manage

// The check of docs/security.md. weakened.go has it with a switch.

// ManageShare: a peer has so many requests under way, and in the second half of all one, so that a few keep no other out.
func isFull(ofPeer, ofAll int) bool {
	most := MaxPeer
	if ofAll >= MaxAll/2 {
		most = 1
	}
	return ofAll >= MaxAll || ofPeer >= most
}
