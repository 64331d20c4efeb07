package vhost

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// errMemory matches the errors of memory that a front end shares and that cannot be used.
var errMemory = errors.New("vhost: the front end's memory")

// region is memory of the front end's, mapped here.
type region struct {
	regionInfo
	mem    []byte // size bytes
	mapped []byte
	refs   atomic.Int32
}

// totalMapped is how many bytes of front ends' memory are mapped.
var totalMapped atomic.Int64

// mapFile maps size bytes at offset of a file that a front end shares. The file is memory, so
// that no access waits for anybody; it is sealed against truncation if it can be. It fails for
// other files, and for what is outside the file.
func mapFile(fd int, offset, size uint64) (mem, mapped []byte, err error) {
	fail := func(format string, args ...any) ([]byte, []byte, error) {
		return nil, nil, fmt.Errorf("%w: map %d bytes at %d of its file: %s", errMemory, size, offset, fmt.Sprintf(format, args...))
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fail("fstatfs: %v", err)
	}
	page := uint64(unix.Getpagesize())
	switch uint32(fs.Type) {
	case unix.TMPFS_MAGIC:
	case unix.HUGETLBFS_MAGIC:
		page = uint64(fs.Bsize)
	default:
		return fail("it is neither a memfd nor on tmpfs or hugetlbfs; share memory of QEMU by -object memory-backend-memfd,share=on")
	}
	if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || fl&unix.O_ACCMODE != unix.O_RDWR {
		return fail("it is not open for reading and writing")
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK) // where it fails, accesses may, and are guarded
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail("fstat: %v", err)
	}
	first := offset &^ (page - 1)
	end := offset + size
	switch {
	case size == 0 || end < offset || end > uint64(st.Size):
		return fail("the file has %d bytes", st.Size)
	case end-first > maxMemory || end-first > math.MaxInt-page:
		return fail("that is too much for this machine")
	}
	n := int64((end - first + page - 1) &^ (page - 1))
	if totalMapped.Add(n) > maxMapped {
		totalMapped.Add(-n)
		return fail("front ends have mapped too much already")
	}
	mapped, err = unix.Mmap(fd, int64(first), int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		totalMapped.Add(-n)
		return fail("mmap: %v", err)
	}
	from := offset - first
	return mapped[from : from+size : from+size], mapped, nil
}

// mapRegion maps a region of the front end's memory. It fails as mapFile does.
func mapRegion(p regionInfo, fd int) (*region, error) {
	if p.guest+p.size < p.guest || p.user+p.size < p.user {
		return nil, fmt.Errorf("%w: a region of %d bytes at %#x and %#x passes the end of all addresses", errMemory, p.size, p.guest, p.user)
	}
	mem, mapped, err := mapFile(fd, p.offset, p.size)
	if err != nil {
		return nil, err
	}
	return &region{regionInfo: p, mem: mem, mapped: mapped}, nil
}

func (r *region) release() {
	if r != nil && r.refs.Add(-1) == 0 {
		unix.Munmap(r.mapped)
		totalMapped.Add(-int64(len(r.mapped)))
	}
}

// memory is all memory of a front end, in the order of the guest's addresses. It does not
// change: when the front end adds or removes some, it gets another one.
type memory struct {
	regions []*region
	refs    atomic.Int32 // requests and queues that use it, and one for the front end
}

// newMemory fails for regions that overlap, and for too many or too large ones.
func newMemory(regions []*region) (*memory, error) {
	if len(regions) > maxSlots {
		return nil, fmt.Errorf("%w: %d regions, more than %d", errMemory, len(regions), maxSlots)
	}
	byGuest := slices.SortedFunc(slices.Values(regions), func(a, b *region) int { return cmp.Compare(a.guest, b.guest) })
	byUser := slices.SortedFunc(slices.Values(regions), func(a, b *region) int { return cmp.Compare(a.user, b.user) })
	for i := 1; i < len(regions); i++ {
		if a, b := byGuest[i-1], byGuest[i]; a.guest+a.size > b.guest {
			return nil, fmt.Errorf("%w: regions at the guest's addresses %#x and %#x overlap", errMemory, a.guest, b.guest)
		}
		if a, b := byUser[i-1], byUser[i]; a.user+a.size > b.user {
			return nil, fmt.Errorf("%w: regions at the front end's addresses %#x and %#x overlap", errMemory, a.user, b.user)
		}
	}
	total := uint64(0)
	for _, r := range regions {
		if total += r.size; total > maxMemory {
			return nil, fmt.Errorf("%w: more than %d bytes", errMemory, uint64(maxMemory))
		}
	}
	m := &memory{regions: byGuest}
	m.refs.Store(1)
	for _, r := range regions {
		r.refs.Add(1)
	}
	return m, nil
}

func (m *memory) retain() *memory {
	m.refs.Add(1)
	return m
}

func (m *memory) release() {
	if m != nil && m.refs.Add(-1) == 0 {
		for _, r := range m.regions {
			r.release()
		}
	}
}

// appendGuest appends the n bytes at a guest's address to into, in parts where they are in
// several regions. It fails for what is outside of them.
func (m *memory) appendGuest(addr, n uint64, into [][]byte) ([][]byte, error) {
	for left, at := n, addr; left > 0; {
		i, ok := slices.BinarySearchFunc(m.regions, at, func(r *region, at uint64) int {
			switch {
			case r.guest+r.size <= at:
				return -1
			case r.guest > at:
				return 1
			}
			return 0
		})
		if !ok {
			return into, fmt.Errorf("%w: %d bytes at the guest's address %#x are not in it", errMemory, n, addr)
		}
		r := m.regions[i]
		from := at - r.guest
		k := min(left, r.size-from)
		into = append(into, r.mem[from:from+k:from+k])
		left, at = left-k, at+k
	}
	return into, nil
}

// userRange returns the n bytes at an address of the front end's, which is a multiple of align.
// It fails for what is not in one region.
func (m *memory) userRange(addr, n, align uint64) ([]byte, error) {
	if addr%align != 0 {
		return nil, fmt.Errorf("%w: %d bytes at its address %#x, which is no multiple of %d", errMemory, n, addr, align)
	}
	for _, r := range m.regions {
		if from := addr - r.user; addr >= r.user && from < r.size {
			if n > r.size-from || (r.offset+from)%align != 0 {
				break
			}
			return r.mem[from : from+n : from+n], nil
		}
	}
	return nil, fmt.Errorf("%w: %d bytes at its address %#x are not in one region", errMemory, n, addr)
}

// ringParts returns the parts of a ring of num descriptors: the descriptors, and what is at the
// addresses avail and used, of so many bytes. It fails for what is not in one region.
func (m *memory) ringParts(at vringAddr, num uint16, availLen, availAlign, usedLen uint64) (desc, avail, used []byte, err error) {
	if desc, err = m.userRange(at.desc, uint64(num)*descLen, 16); err == nil {
		avail, err = m.userRange(at.avail, availLen, availAlign)
	}
	if err == nil {
		used, err = m.userRange(at.used, usedLen, 4)
	}
	return desc, avail, used, err
}

var errTruncated = fmt.Errorf("%w has gone: its file was truncated", errMemory)

// guarded runs f, which reads and writes a front end's memory. A file that was truncated after
// it was mapped makes such an access fail: then guarded fails.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface {
			runtime.Error
			Addr() uintptr
		}:
			err = errTruncated
		default:
			panic(p)
		}
	}()
	return f()
}
