package rdmalib

import (
	"syscall"
	"unsafe"

	"github.com/ironwarp/ironwarp/verbs"
)

type pd struct{ pd *verbs.PD }

// mr is a memory region. Programs name places in it by addresses that count from base.
type mr struct {
	mr   *verbs.MR
	base uint64
	n    uint64
}

type mw struct{ mw *verbs.MW }

// AllocPD returns the handle of a protection domain.
func (e *Engine) AllocPD() (uint32, syscall.Errno) {
	p, err := e.ulp.AllocPD()
	if err != nil {
		return 0, e.errnoOf("allocate a protection domain", err)
	}
	h := e.pds.add(&pd{p})
	if h == 0 {
		p.Dealloc()
		return 0, syscall.ENOMEM
	}
	return h, 0
}

// DeallocPD fails with EBUSY while something belongs to the domain.
func (e *Engine) DeallocPD(h uint32) syscall.Errno {
	p := e.pds.get(h)
	if p == nil {
		return syscall.EINVAL
	}
	if err := p.pd.Dealloc(); err != nil {
		return e.errnoOf("free a protection domain", err)
	}
	e.pds.remove(h)
	return 0
}

// Bits of enum ibv_access_flags.
const (
	accessLocalWrite  = 1 << 0
	accessRemoteWrite = 1 << 1
	accessRemoteRead  = 1 << 2
	accessAtomic      = 1 << 3
	accessBind        = 1 << 4
	accessZeroBased   = 1 << 5
	accessOnDemand    = 1 << 6
	accessHugePages   = 1 << 7
	accessOptional    = 0x3ff << 20 // IBV_ACCESS_OPTIONAL_RANGE, of which RELAXED_ORDERING is one
)

// accessOf returns the rights that flags ask for. The program may write to its memory while that is sent: nothing keeps it
// from that, and it may count on it.
func accessOf(flags uint32) verbs.Access {
	a := verbs.Volatile
	for _, x := range [...]struct {
		flag uint32
		a    verbs.Access
	}{{accessLocalWrite, verbs.LocalWrite}, {accessRemoteWrite, verbs.RemoteWrite}, {accessRemoteRead, verbs.RemoteRead}, {accessAtomic, verbs.RemoteAtomic}, {accessBind, verbs.WindowBind}} {
		if flags&x.flag != 0 {
			a |= x.a
		}
	}
	return a
}

// RegMR registers n bytes at an address of the process, which peers and work requests know as those from base on. It
// returns the local key and the STag. It fails with EOPNOTSUPP for memory on demand.
func (e *Engine) RegMR(domain uint32, addr unsafe.Pointer, n, base uint64, access uint32) (lkey, rkey uint32, _ syscall.Errno) {
	p := e.pds.get(domain)
	switch {
	case p == nil, n == 0, n > 1<<32-1, addr == nil:
		return 0, 0, syscall.EINVAL
	case access&accessOnDemand != 0:
		return 0, 0, syscall.EOPNOTSUPP
	case access&^(accessLocalWrite|accessRemoteWrite|accessRemoteRead|accessAtomic|accessBind|accessZeroBased|accessHugePages|accessOptional) != 0:
		return 0, 0, syscall.EINVAL
	case access&accessZeroBased != 0:
		base = 0
	}
	// Siw registers memory that peers may read alone; ours has no lock of its own either.
	m, err := p.pd.RegisterMRAt(base, unsafe.Slice((*byte)(addr), n), accessOf(access))
	if err != nil {
		return 0, 0, e.errnoOf("register memory", err)
	}
	e.log.Debug("memory registered", "base", base, "bytes", n, "stag", m.STag())
	h := e.mrs.add(&mr{m, base, n})
	if h == 0 {
		m.Deregister()
		return 0, 0, syscall.ENOMEM
	}
	return h, m.STag(), 0
}

// DeregMR ends a registration. When it returns nothing touches the memory any more, whatever is posted. It fails with
// EBUSY while memory windows are bound to the region.
func (e *Engine) DeregMR(h uint32) syscall.Errno {
	m := e.mrs.get(h)
	if m == nil {
		return syscall.EINVAL
	}
	if err := m.mr.Withdraw(); err != nil {
		return e.errnoOf("deregister memory", err)
	}
	e.mrs.remove(h)
	return 0
}

// AllocMW returns the handle of a memory window, and its STag, of which the program chooses the lower 8 bits when it binds
// the window.
func (e *Engine) AllocMW(domain uint32) (h, rkey uint32, _ syscall.Errno) {
	p := e.pds.get(domain)
	if p == nil {
		return 0, 0, syscall.EINVAL
	}
	w, err := p.pd.AllocKeyedMW()
	if err != nil {
		return 0, 0, e.errnoOf("allocate a memory window", err)
	}
	if h = e.mws.add(&mw{w}); h == 0 {
		w.Dealloc()
		return 0, 0, syscall.ENOMEM
	}
	return h, w.STag(), 0
}

// DeallocMW fails with EBUSY while a bind is posted.
func (e *Engine) DeallocMW(h uint32) syscall.Errno {
	w := e.mws.get(h)
	if w == nil {
		return syscall.EINVAL
	}
	if err := w.mw.Dealloc(); err != nil {
		return e.errnoOf("free a memory window", err)
	}
	e.mws.remove(h)
	return 0
}

// SGE is struct ibv_sge.
type SGE struct {
	Addr uint64
	Len  uint32
	LKey uint32
}

// list turns a program's scatter/gather list into that of verbs. Elements of no bytes are left out, whatever they name.
func (e *Engine) list(into []verbs.SGE, sg *SGE, n uint32) ([]verbs.SGE, syscall.Errno) {
	if n > uint32(cap(into)) {
		return nil, syscall.EINVAL
	}
	for _, x := range unsafe.Slice(sg, n) {
		if x.Len == 0 {
			continue
		}
		m := e.mrs.get(x.LKey)
		if m == nil || x.Addr < m.base || x.Addr-m.base > m.n || uint64(x.Len) > m.n-(x.Addr-m.base) {
			return nil, syscall.EINVAL
		}
		into = append(into, verbs.SGE{MR: m.mr, Off: uint32(x.Addr - m.base), Len: x.Len})
	}
	return into, 0
}
