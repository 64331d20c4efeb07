package blocklist

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/ipsec"
)

// intake counts the streams that each peer creates, attempts included, so that a peer
// that keeps creating them can be blocked (RFC 5042 section 6.4.1): a bucket for each,
// which holds Burst and is refilled by PerSecond.
type intake struct {
	now    func() time.Time
	excess chan excess // whom to block

	mu     sync.Mutex // guards the fields below it
	policy config.Block
	peers  map[string]*peerIntake
}

// peerIntake is what a peer has created lately.
type peerIntake struct {
	bucket rate.Bucket
	asked  bool // that it be blocked
}

// excess is a peer that has created more than it may.
type excess struct {
	peer string
	why  string
	time time.Duration // for which it is to be blocked
}

// maxExcess is how many peers may wait to be blocked. One for which there is no room
// gets its turn with its next stream.
const maxExcess = 64

func newIntake(p config.Block) *intake {
	return &intake{now: time.Now, excess: make(chan excess, maxExcess), policy: p, peers: map[string]*peerIntake{}}
}

// setPolicy changes the policy; every peer begins with a full bucket.
func (i *intake) setPolicy(p config.Block) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.policy != p {
		i.policy = p
		clear(i.peers)
	}
}

// countStream counts a stream, or an attempt at one, that failed with err. It does not
// block.
func (i *intake) countStream(peer string, err error) {
	if errors.Is(err, ipsec.ErrBlocked) {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.policy
	if p.PerSecond == 0 {
		return
	}
	b := i.peers[peer]
	if b == nil {
		b = &peerIntake{}
		i.peers[peer] = b
	}
	limit := rate.Limit{PerSecond: float64(p.PerSecond), Burst: float64(p.Burst)}
	if b.mayCreate(limit, i.now()) || b.asked {
		return
	}
	why := fmt.Sprintf("it has created more than %d streams at once and %d each second, failed attempts included", p.Burst, p.PerSecond)
	select {
	case i.excess <- excess{peer, why, p.For}:
		b.asked = true
	default:
	}
}

// forgetPeer lets a peer begin anew.
func (i *intake) forgetPeer(peer string) {
	i.mu.Lock()
	delete(i.peers, peer)
	i.mu.Unlock()
}

// blockTime is how long a block lasts by default.
func (i *intake) blockTime() time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.policy.For == 0 {
		return config.DefaultBlock
	}
	return i.policy.For
}
