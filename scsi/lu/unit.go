package lu

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/scsi"
)

// Medium is what a unit keeps its blocks on. A block.Storage is one.
type Medium interface {
	Geometry() block.Geometry
	Identity() block.Identity
	NewQueue(afterBatch func()) block.Queue
}

// Config describes a unit.
type Config struct {
	Medium Medium
	// BlockSize is the length of a logical block in bytes, 512 or 4096; 0 means 512.
	BlockSize uint32
	// Product and Serial are what people see. Without Serial it is the identity of the medium.
	Product, Serial string
	ReadOnly        bool // even if the medium is not
	Removable       bool
	// Reservations is the file that keeps persistent reservations over a restart (APTPL). Without
	// it an initiator that asks for that is refused.
	Reservations string
	// Sanitize lets initiators erase the whole medium by SANITIZE. It is the file that knows over a
	// restart that one has begun and has not come to its end.
	Sanitize string
}

// Errors of New and Add.
var (
	ErrBlockSize = errors.New("lu: the medium does not consist of whole logical blocks")
	ErrLUN       = errors.New("lu: this LUN is taken, or not below 4096")
)

// Unit is a logical unit.
type Unit struct {
	cfg   Config
	geo   block.Geometry // but for Size
	shift uint           // of bytes to blocks

	dsense atomic.Bool // sense data have descriptors

	write   func(path string, v any) error // wholefile.WriteJSON
	closing chan struct{}
	work    sync.WaitGroup // what SANITIZE has begun

	progress atomic.Uint32 // of it, in 65536ths

	mu         sync.Mutex // guards the fields below it, and those of its nexuses and tasks that say so
	nexuses    []*Nexus
	tasks      taskList // all between Begin and the end
	waiting    []*Task  // for others to end, in their order
	exclusive  int      // tasks that run or wait and want something for themselves
	blocks     uint64   // at the last look
	ejected    bool
	absence    absence
	swp        bool   // software write protect
	reservedBy *Nexus // by RESERVE(6)
	pr         persistent
	erasure    erasure
}

// New returns a unit. It reads the files of reservations and of SANITIZE. It fails with ErrBlockSize,
// and if one of them cannot be read.
func New(cfg Config) (*Unit, error) {
	if cfg.BlockSize == 0 {
		cfg.BlockSize = 512
	}
	u := &Unit{cfg: cfg, geo: cfg.Medium.Geometry(), write: wholefile.WriteJSON, closing: make(chan struct{})}
	for u.shift = 9; 1<<u.shift < cfg.BlockSize; u.shift++ {
	}
	if bs := uint64(cfg.BlockSize); bs != 512 && bs != 4096 || u.geo.Size%bs != 0 || u.geo.Size == 0 || uint64(u.geo.MinBlock) > bs {
		return nil, ErrBlockSize
	}
	u.blocks = u.geo.Size >> u.shift
	if cfg.Serial == "" {
		u.cfg.Serial = cfg.Medium.Identity().Disk.String()
	}
	if u.cfg.Product == "" {
		u.cfg.Product = "disk"
	}
	u.pr.keys = make(map[string]uint64)
	if cfg.Reservations != "" {
		if err := u.pr.load(cfg.Reservations); err != nil {
			return nil, fmt.Errorf("reservations of %s: %w", u.cfg.Serial, err)
		}
	}
	if cfg.Sanitize != "" {
		if err := u.erasure.load(cfg.Sanitize); err != nil {
			return nil, fmt.Errorf("state of SANITIZE of %s: %w", u.cfg.Serial, err)
		}
	}
	return u, nil
}

// Close ends what SANITIZE has begun, which then counts as failed, and returns when nothing of it is
// under way. No port is attached any more.
func (u *Unit) Close() {
	u.mu.Lock()
	select {
	case <-u.closing:
	default:
		close(u.closing)
	}
	u.mu.Unlock()
	u.work.Wait()
}

// absent stands for the units that there are not.
var absent = &Unit{}

func (u *Unit) isAbsent() bool { return u.cfg.Medium == nil }

// Device is a SCSI target device: units by their numbers.
type Device struct {
	Name        string // its SCSI name, for an iSCSI target its name
	PortalGroup uint16

	mu    sync.Mutex // guards the fields below it; taken before Unit.mu
	units map[uint16]*Unit
	ports []*Port
}

// Initiator is an initiator port.
type Initiator struct {
	Name string
	ISID [6]byte
}

// String returns the name of the port (RFC 7143 section 4.2.7): that of the initiator and the ISID.
func (i Initiator) String() string { return fmt.Sprintf("%s,i,0x%x", i.Name, i.ISID) }

// targetPort is the relative identifier of the one target port of a device.
const targetPort = 1

// Port is an initiator port with its nexuses to the units of a device: for iSCSI a session.
type Port struct {
	device  *Device
	id      Initiator
	key     string // id, as a name in files
	after   func()
	nexuses atomic.Pointer[map[uint16]*Nexus] // replaced with device.mu held
	none    *Nexus
	copies  atomic.Int32 // under way, in all units
}

// Nexus is an initiator port's relation to a unit.
type Nexus struct {
	unit  *Unit
	port  *Port
	queue block.Queue

	attentions []scsi.Code // guarded by Unit.mu
	prevents   bool        // guarded by Unit.mu; removal of the medium
	left       bool        // guarded by Unit.mu; it has come to its end
	copies     []*copyJob  // guarded by Unit.mu; those that are known, in their order
}

// Attach makes the nexuses of an initiator port. afterBatch is called after completions on
// goroutines of the medium.
func (d *Device) Attach(id Initiator, afterBatch func()) *Port {
	p := &Port{device: d, id: id, key: id.String(), after: afterBatch}
	p.none = &Nexus{unit: absent, port: p}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ports = append(d.ports, p)
	nexuses := make(map[uint16]*Nexus, len(d.units))
	for lun, u := range d.units {
		nexuses[lun] = p.newNexus(u)
	}
	p.nexuses.Store(&nexuses)
	return p
}

func (p *Port) newNexus(u *Unit) *Nexus {
	n := &Nexus{unit: u, port: p, queue: u.cfg.Medium.NewQueue(p.after), attentions: make([]scsi.Code, 1, maxAttentions)}
	n.attentions[0] = scsi.PowerOnOrReset
	u.mu.Lock()
	defer u.mu.Unlock()
	u.nexuses = append(u.nexuses, n)
	return n
}

// Nexus returns the relation to the unit of a LUN field. Of a unit that there is not it is one that
// says so.
func (p *Port) Nexus(lun [8]byte) *Nexus {
	if n, ok := scsi.LUN(lun); ok {
		if x := (*p.nexuses.Load())[n]; x != nil {
			return x
		}
	}
	return p.none
}

// All returns the relations to all units, by their numbers.
func (p *Port) All() []*Nexus {
	nexuses := *p.nexuses.Load()
	all := make([]*Nexus, 0, len(nexuses))
	for _, lun := range slices.Sorted(maps.Keys(nexuses)) {
		all = append(all, nexuses[lun])
	}
	return all
}

// Exists reports whether there is a unit.
func (n *Nexus) Exists() bool { return !n.unit.isAbsent() }

// Detach is the loss of the nexuses (SAM-5 6.3.4): what the initiator had reserved by RESERVE(6) and
// its hold on removable media end, and persistent reservations stay. All its tasks have ended.
func (p *Port) Detach() {
	p.device.mu.Lock()
	p.device.ports = slices.DeleteFunc(p.device.ports, func(o *Port) bool { return o == p })
	p.device.mu.Unlock()
	for _, n := range p.All() {
		n.leave()
	}
}

// leave is the end of a nexus. None of its tasks is under way at the medium.
func (n *Nexus) leave() {
	u := n.unit
	u.mu.Lock()
	left := n.left
	n.left = true
	u.nexuses = slices.DeleteFunc(u.nexuses, func(o *Nexus) bool { return o == n })
	if u.reservedBy == n {
		u.reservedBy = nil
	}
	u.mu.Unlock()
	if !left {
		n.queue.Close()
	}
}

// attendLocked raises a unit attention.
func (n *Nexus) attendLocked(c scsi.Code) {
	switch {
	case slices.Contains(n.attentions, c):
	case len(n.attentions) == maxAttentions:
		n.attentions = append(n.attentions[:0], scsi.PowerOnOrReset)
	default:
		n.attentions = append(n.attentions, c)
	}
}

// attendOthersLocked raises a unit attention for all nexuses but one.
func (u *Unit) attendOthersLocked(but *Nexus, c scsi.Code) {
	for _, n := range u.nexuses {
		if n != but {
			n.attendLocked(c)
		}
	}
}

// resetLocked is the effect of a reset on what is no task (SAM-5 6.3.3).
func (u *Unit) resetLocked(c scsi.Code) {
	u.reservedBy = nil
	u.swp = false
	u.dsense.Store(false)
	for _, n := range u.nexuses {
		n.prevents, n.copies = false, nil
		n.attentions = append(n.attentions[:0], c)
	}
}

func (u *Unit) preventedLocked() bool {
	return slices.ContainsFunc(u.nexuses, func(n *Nexus) bool { return n.prevents })
}

// lookLocked looks at the size of the medium, which may have grown.
func (u *Unit) lookLocked() {
	if b := u.cfg.Medium.Geometry().Size >> u.shift; b != u.blocks {
		u.blocks = b
		u.attendOthersLocked(nil, scsi.CapacityHasChanged)
	}
}

func (u *Unit) readOnly() bool { return u.cfg.ReadOnly || u.geo.ReadOnly }
