package backing

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
)

// status puts into buf which parts of a range are holes (block.PutExtents). A device, and
// a file system that does not know, say that all is data. Bytes of a file that has become
// shorter are EIO, as they are to a read.
func (s *Store) status(buf []byte, off, n int64) syscall.Errno {
	if !s.inRange(off, n) || n == 0 {
		return unix.EINVAL
	}
	if !s.lockOpen() {
		return unix.EBADF
	}
	defer s.unlock()
	extents, errno := s.extents(off, n)
	if errno == 0 {
		errno = s.reaches(off + n) // after the file was asked: its missing end looks like a hole
	}
	if errno == 0 {
		block.PutExtents(buf, extents)
	}
	return errno
}

// extents returns at most block.MaxExtents extents from off on.
func (s *Store) extents(off, n int64) (all []block.Extent, errno syscall.Errno) {
	if s.device {
		return []block.Extent{{Length: uint32(n)}}, 0
	}
	for end := off + n; off < end && len(all) < block.MaxExtents; {
		data, errno := s.seek(off, unix.SEEK_DATA)
		switch errno {
		case 0:
		case unix.ENXIO:
			data = end
		case unix.EINVAL, unix.EOPNOTSUPP:
			data = off // it does not know
		default:
			return nil, errno
		}
		// A hole is one of whole sectors.
		if hole := min(data, end) &^ (sector - 1); hole > off {
			all = append(all, block.Extent{Length: uint32(hole - off), State: block.Hole | block.Zero})
			off = hole
			continue
		}
		next, errno := s.seek(max(data, off), unix.SEEK_HOLE)
		switch errno {
		case 0:
			next = (next + sector - 1) &^ (sector - 1)
		case unix.EINVAL, unix.EOPNOTSUPP, unix.ENXIO:
			next = end
		default:
			return nil, errno
		}
		next = min(max(next, off+sector), end)
		all = append(all, block.Extent{Length: uint32(next - off)})
		off = next
	}
	return all, 0
}

// seek is lseek. Nothing depends on the file's position.
func (s *Store) seek(off int64, whence int) (int64, syscall.Errno) {
	at, err := unix.Seek(int(s.fd), off, whence)
	if err != nil {
		errno, _ := err.(syscall.Errno)
		return 0, errno
	}
	return at, 0
}

// readAhead has the kernel read what is not in the page cache yet. It is a hint: no
// failure of the storage is a failure of it.
func (s *Store) readAhead(off, n int64) syscall.Errno {
	if !s.inRange(off, n) {
		return unix.EINVAL
	}
	if !s.lockOpen() {
		return unix.EBADF
	}
	defer s.unlock()
	for n = min(n, maxReadAhead); n > 0; {
		k := min(n, readAheadPiece)
		if unix.Fadvise(int(s.fd), off, k, unix.FADV_WILLNEED) != nil {
			return 0
		}
		off, n = off+k, n-k
	}
	return 0
}
