//go:build weakened

package manage

import "github.com/ironwarp/ironwarp/internal/checks"

func isFull(ofPeer, ofAll int) bool {
	if !checks.On(checks.ManageShare) {
		return false
	}
	most := MaxPeer
	if ofAll >= MaxAll/2 {
		most = 1
	}
	return ofAll >= MaxAll || ofPeer >= most
}
