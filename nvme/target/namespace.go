package target

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nvme"
)

// Medium is what a namespace keeps its blocks on. A block.Storage is one.
type Medium interface {
	Geometry() block.Geometry
	Identity() block.Identity
	NewQueue(afterBatch func()) block.Queue
}

// NamespaceConfig describes a namespace.
type NamespaceConfig struct {
	Medium Medium
	// BlockSize is the length of a logical block in bytes, 512 or 4096; 0 means 512.
	BlockSize uint32
	// ID is the UUID and the NGUID; zero: that of the disk.
	ID       block.ID
	ReadOnly bool // even if the medium is not
	// Thick has nothing given back to the storage.
	Thick bool
	// Reservations is the file that keeps reservations that persist through power loss. Without it a host that asks for
	// that is refused.
	Reservations string
}

// ErrBlockSize means that a medium does not consist of whole logical blocks.
var ErrBlockSize = errors.New("nvme: the medium does not consist of whole logical blocks")

// Namespace is a namespace. It is attached to one subsystem at most.
type Namespace struct {
	cfg     NamespaceConfig
	geo     block.Geometry // but for Size
	shift   uint           // of bytes to blocks
	drained chan struct{}  // closed when it is gone and no command is at the storage
	io      counters
	latency block.Latency

	editing sync.Mutex // one reservation command at a time; taken before mu

	mu      sync.Mutex // guards the fields below it; taken after controller.mu
	queues  []*nexus
	running map[block.ID]int // commands at the storage, by hosts
	all     int              // of them
	gone    bool
	epoch   uint64 // of commands that begin; each drain waits for those of earlier ones
	waiting []*drain
	pr      reservations
}

// drain waits for the end of what hosts have had at the storage when it began: what they begin afterwards, as reads that a reservation
// allows, does not hold it up.
type drain struct {
	hosts []block.ID
	epoch uint64 // commands of later ones are none of it
	left  int
	then  func()
}

// NewNamespace returns a namespace. It reads the file of reservations. It fails with ErrBlockSize, and if that cannot be
// read.
func NewNamespace(cfg NamespaceConfig) (*Namespace, error) {
	if cfg.BlockSize == 0 {
		cfg.BlockSize = 512
	}
	if cfg.ID.IsZero() {
		cfg.ID = cfg.Medium.Identity().Disk
	}
	n := &Namespace{cfg: cfg, geo: cfg.Medium.Geometry(), running: map[block.ID]int{}, drained: make(chan struct{})}
	for n.shift = 9; 1<<n.shift < cfg.BlockSize; n.shift++ {
	}
	if bs := uint64(cfg.BlockSize); bs != 512 && bs != 4096 || n.geo.Size%bs != 0 || n.geo.Size == 0 || uint64(n.geo.MinBlock) > bs {
		return nil, ErrBlockSize
	}
	n.pr.keys = map[block.ID]uint64{}
	if cfg.Reservations != "" {
		if err := n.pr.load(cfg.Reservations); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// thin reports whether what is given up reads as zeroes and takes no space.
func (n *Namespace) thin() bool { return n.geo.CanTrim && n.geo.CanWriteZeroes && !n.cfg.Thick }

func (n *Namespace) readOnly() bool { return n.cfg.ReadOnly || n.geo.ReadOnly }

// size is the number of blocks now.
func (n *Namespace) size() uint64 { return n.cfg.Medium.Geometry().Size >> n.shift }

func (n *Namespace) describe() []byte {
	d := nvme.IdentifyNamespace{Blocks: n.size(), BlockShift: uint8(n.shift), Thin: n.thin(), Shared: true, Kept: n.cfg.Reservations != "", ReadOnly: n.readOnly(), ID: n.cfg.ID}
	return d.Append(nil)
}

// NamespaceStats are a namespace's figures since it was made.
type NamespaceStats struct {
	IO
	// Latency is what Read, Write and Flush commands took that had no error, from their beginning at the storage, with their data there, to their answers.
	Latency block.LatencyCounts
}

// Stats returns the namespace's figures.
func (n *Namespace) Stats() NamespaceStats { return NamespaceStats{n.io.load(), n.latency.Counts()} }

// nexus is a connection's queue to a namespace.
type nexus struct{ block.Queue }

func (n *Namespace) newQueue(afterBatch func()) *nexus {
	q := &nexus{n.cfg.Medium.NewQueue(afterBatch)}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queues = append(n.queues, q)
	return q
}

// forget forgets a queue that is closed.
func (n *Namespace) forget(q *nexus) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queues = slices.DeleteFunc(n.queues, func(o *nexus) bool { return o == q })
}

// begin begins a command of a host.
func (n *Namespace) begin(x *controller, k *command, op nvme.Opcode) nvme.Status {
	writes := op == nvme.Write || op == nvme.WriteZeroes || op == nvme.DatasetManagement
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.gone:
		return nvme.NamespaceNotReady
	case writes && n.readOnly():
		return nvme.WriteProtected | nvme.DNR
	case n.pr.excludes(x.host.HostID, writes || op == nvme.Flush):
		return nvme.ReservationConflict | nvme.DNR
	}
	n.running[x.host.HostID]++
	n.all++
	k.ns, k.epoch, k.began = n, n.epoch, time.Now()
	return nvme.Success
}

// end ends it.
func (n *Namespace) end(k *command) {
	host := k.ctrl.host.HostID
	n.mu.Lock()
	n.all--
	if n.running[host]--; n.running[host] == 0 {
		delete(n.running, host)
	}
	if n.gone && n.all == 0 {
		close(n.drained)
	}
	var then []func()
	n.waiting = slices.DeleteFunc(n.waiting, func(d *drain) bool {
		if k.epoch <= d.epoch && slices.Contains(d.hosts, host) {
			d.left--
		}
		if d.left == 0 {
			then = append(then, d.then)
		}
		return d.left == 0
	})
	n.mu.Unlock()
	for _, f := range then {
		f()
	}
}

// whenDrained calls then when nothing of hosts, each of them once, is at the storage that was there before.
func (n *Namespace) whenDrained(hosts []block.ID, then func()) {
	n.mu.Lock()
	d := &drain{hosts: hosts, epoch: n.epoch, then: then}
	n.epoch++
	for _, h := range hosts {
		d.left += n.running[h]
	}
	now := d.left == 0
	if !now {
		n.waiting = append(n.waiting, d)
	}
	n.mu.Unlock()
	if now {
		then()
	}
}

// close lets no command begin any more. The channel is closed when none is at the storage, and the queues there are
// closed.
func (n *Namespace) close() <-chan struct{} {
	n.mu.Lock()
	if !n.gone {
		n.gone = true
		if n.all == 0 {
			close(n.drained)
		}
	}
	n.mu.Unlock()
	over := make(chan struct{})
	go func() {
		<-n.drained
		n.mu.Lock()
		queues := n.queues
		n.queues = nil
		n.mu.Unlock()
		for _, q := range queues {
			q.Close()
		}
		close(over)
	}()
	return over
}
