package backing

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
)

// Discard gives up n bytes at off, whose content is no longer needed; afterwards
// they read as anything, usually as zeroes. It is a hint: on storage that cannot
// discard it succeeds without effect. With fua the effect is durable on return.
// It fails as Write does.
func (s *Store) Discard(off, n int64, fua bool) error { return asError(s.doDiscard(off, n, fua)) }

// WriteZeroes makes n bytes at off read as zeroes, durably with fua. With
// noUnmap the range keeps its space, so that later writes cannot fail for want
// of it. Zeroes are written where the storage has no quicker way. It fails as
// Write does.
func (s *Store) WriteZeroes(off, n int64, fua, noUnmap bool) error {
	var fl block.Flags
	if fua {
		fl |= block.FUA
	}
	if noUnmap {
		fl |= block.NoUnmap
	}
	return asError(s.writeZeroes(off, n, fl))
}

func (s *Store) doDiscard(off, n int64, fua bool) syscall.Errno {
	if errno := s.writable(off, n); errno != 0 {
		return errno
	}
	if !s.lockOpen() {
		return unix.EBADF
	}
	defer s.unlock()
	if errno := s.reaches(off + n); errno != 0 || n == 0 || !s.discard {
		return errno
	}
	var errno syscall.Errno
	if s.device {
		// Devices discard whole blocks only; the rest keeps its content.
		align := int64(s.logical)
		first, end := (off+align-1)/align*align, (off+n)/align*align
		if first >= end {
			return 0
		}
		errno = s.rangeIoctl(unix.BLKDISCARD, first, end-first)
	} else {
		errno = s.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	}
	switch {
	case errno == unix.EOPNOTSUPP:
		return 0
	case errno == 0 && fua:
		return s.fdatasync()
	}
	return s.heed(errno)
}

func (s *Store) writeZeroes(off, n int64, fl block.Flags) syscall.Errno {
	if errno := s.writable(off, n); errno != 0 {
		return errno
	}
	if !s.lockOpen() {
		return unix.EBADF
	}
	defer s.unlock()
	if errno := s.reaches(off + n); errno != 0 || n == 0 {
		return errno
	}
	errno := s.zeroRange(off, n, fl)
	if errno == unix.EOPNOTSUPP || errno == unix.EINVAL {
		if fl&block.FastZero != 0 {
			return unix.EOPNOTSUPP
		}
		errno = s.writeZeroBytes(off, n)
	}
	if errno == 0 && fl&block.FUA != 0 {
		return s.fdatasync()
	}
	return s.heed(errno)
}

// zeroRange has the storage zero a range. EOPNOTSUPP or EINVAL: it cannot.
func (s *Store) zeroRange(off, n int64, fl block.Flags) syscall.Errno {
	noUnmap := fl&block.NoUnmap != 0
	const (
		punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
		zero  = unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE
	)
	if !s.device {
		if !noUnmap {
			if errno := s.fallocate(punch, off, n); errno != unix.EOPNOTSUPP {
				return errno
			}
		}
		return s.fallocate(zero, off, n)
	}
	// On a device fallocate goes through the page cache's invalidation and
	// wants whole blocks. A hole is punched only where it reads as zeroes.
	align := int64(s.logical)
	if off%align != 0 || n%align != 0 {
		return unix.EINVAL
	}
	if !noUnmap {
		if errno := s.fallocate(punch, off, n); errno != unix.EOPNOTSUPP {
			return errno
		}
	}
	if fl&block.FastZero != 0 {
		return unix.EOPNOTSUPP // the kernel writes zeroes where the device cannot, and does not say so
	}
	return s.rangeIoctl(unix.BLKZEROOUT, off, n)
}

func (s *Store) writeZeroBytes(off, n int64) syscall.Errno {
	for n > 0 {
		k := min(n, int64(len(s.zeroes)))
		if errno := s.pwrite(s.fd, s.zeroes[:k], off, 0); errno != 0 {
			return errno
		}
		off, n = off+k, n-k
	}
	return 0
}

func (s *Store) fallocate(mode uintptr, off, n int64) syscall.Errno {
	return inPieces(off, n, func(off, n int64) syscall.Errno {
		_, _, errno := syscall.Syscall6(unix.SYS_FALLOCATE, s.fd, mode, uintptr(off), uintptr(n), 0, 0)
		return errno
	})
}

func (s *Store) rangeIoctl(req uint, off, n int64) syscall.Errno {
	return inPieces(off, n, func(off, n int64) syscall.Errno {
		r := [2]uint64{uint64(off), uint64(n)}
		return s.ioctl(req, unsafe.Pointer(&r))
	})
}

// inPieces calls change for each part of a range, of zeroRangeMax bytes at most.
func inPieces(off, n int64, change func(off, n int64) syscall.Errno) syscall.Errno {
	for n > 0 {
		k := min(n, zeroRangeMax)
		switch errno := change(off, k); errno {
		case 0:
			off, n = off+k, n-k
		case unix.EINTR:
		default:
			return errno
		}
	}
	return 0
}
