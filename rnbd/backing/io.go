package backing

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TryRead reads len(p) bytes at off if they can be had without sleeping (from
// the page cache). done is false when they cannot; then p's content is
// undefined and Read is the way. Errors are those of Read, with done true.
func (s *Store) TryRead(p []byte, off int64) (done bool, err error) {
	done, errno := s.tryRead(p, off)
	return done, asError(errno)
}

// Read reads len(p) bytes at off. It returns EINVAL outside the disk, EIO where
// a file has become shorter than it was when opened, and what the kernel says.
func (s *Store) Read(p []byte, off int64) error { return asError(s.read(p, off)) }

// Write writes p at off; with fua it is durable on return. It returns EPERM on
// a read-only store, EINVAL outside the disk, EIO beyond the end of a file that
// has become shorter, and what the kernel says (ENOSPC, EDQUOT, ..).
func (s *Store) Write(p []byte, off int64, fua bool) error { return asError(s.write(p, off, fua)) }

// FastWrites reports that writes have been filling the page cache without
// delay lately, so that one may be made where sleeping is unwelcome. A hint.
func (s *Store) FastWrites() bool { return s.writes.fast() }

// Flush makes all writes that have returned durable. Once it has failed it
// fails for ever: the kernel forgets what it could not write, so a later
// success would be untrue.
func (s *Store) Flush() error { return asError(s.flush()) }

// asError keeps a nil error nil.
func asError(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func (s *Store) tryRead(p []byte, off int64) (bool, syscall.Errno) {
	if s.noWaitUnsupported.Load() {
		return false, 0
	}
	if !s.inRange(off, int64(len(p))) {
		return true, unix.EINVAL
	}
	if !s.enter() {
		return true, unix.EBADF
	}
	defer s.leave()
	n, errno := prw(unix.SYS_PREADV2, s.fd, p, off, unix.RWF_NOWAIT, len(p) <= maxRawIO)
	if errno == unix.EOPNOTSUPP || errno == unix.ENOSYS || errno == unix.EINVAL {
		s.noWaitUnsupported.Store(true)
	}
	return errno == 0 && n == len(p), 0
}

func (s *Store) read(p []byte, off int64) syscall.Errno {
	if !s.inRange(off, int64(len(p))) {
		return unix.EINVAL
	}
	if !s.enter() {
		return unix.EBADF
	}
	defer s.leave()
	for len(p) > 0 {
		n, errno := prw(unix.SYS_PREADV2, s.fd, p[:min(len(p), maxSyscallIO)], off, 0, false)
		if errno != 0 {
			return errno
		}
		if n == 0 {
			return unix.EIO
		}
		p, off = p[n:], off+int64(n)
	}
	return 0
}

func (s *Store) write(p []byte, off int64, fua bool) syscall.Errno {
	if errno := s.writable(off, int64(len(p))); errno != 0 {
		return errno
	}
	if !s.enter() {
		return unix.EBADF
	}
	defer s.leave()
	if errno := s.reaches(off + int64(len(p))); errno != 0 {
		return errno
	}
	if fua {
		return s.pwrite(p, off, unix.RWF_DSYNC)
	}
	start := time.Now()
	errno := s.pwrite(p, off, 0)
	s.writes.observe(time.Since(start), len(p))
	return errno
}

// pwrite writes all of p. The caller has checked everything.
func (s *Store) pwrite(p []byte, off int64, flags uintptr) syscall.Errno {
	for len(p) > 0 {
		n, errno := prw(unix.SYS_PWRITEV2, s.fd, p[:min(len(p), maxSyscallIO)], off, flags, false)
		if (errno == unix.EOPNOTSUPP || errno == unix.ENOSYS) && flags == unix.RWF_DSYNC {
			if errno = s.pwrite(p, off, 0); errno != 0 {
				return errno
			}
			return s.fdatasync()
		}
		if errno == unix.EIO && flags == unix.RWF_DSYNC {
			// This may be news of any earlier write that a flush would have told.
			s.flushFailed.Store(int32(errno))
		}
		if errno != 0 {
			return errno
		}
		if n == 0 {
			return unix.EIO
		}
		p, off = p[n:], off+int64(n)
	}
	return 0
}

func (s *Store) flush() syscall.Errno {
	if s.readOnly {
		return 0
	}
	if !s.enter() {
		return unix.EBADF
	}
	defer s.leave()
	return s.fdatasync()
}

func (s *Store) fdatasync() syscall.Errno {
	if e := s.flushFailed.Load(); e != 0 {
		return syscall.Errno(e)
	}
	for {
		_, _, errno := syscall.Syscall(unix.SYS_FDATASYNC, s.fd, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			s.flushFailed.Store(int32(errno))
			return errno
		}
		// The kernel tells each failure once; it may have told another flush.
		return syscall.Errno(s.flushFailed.Load())
	}
}

func (s *Store) inRange(off, n int64) bool { return off >= 0 && n >= 0 && off <= s.size-n }

func (s *Store) writable(off, n int64) syscall.Errno {
	switch {
	case s.readOnly:
		return unix.EPERM
	case !s.inRange(off, n):
		return unix.EINVAL
	}
	return 0
}

// reaches returns EIO when a file has become shorter than end: to write there
// would put zeroes where data was lost.
func (s *Store) reaches(end int64) syscall.Errno {
	if s.device {
		return 0
	}
	var st unix.Stat_t
	if _, _, errno := syscall.RawSyscall(unix.SYS_FSTAT, s.fd, uintptr(unsafe.Pointer(&st)), 0); errno != 0 {
		return errno
	}
	if st.Size < end {
		return unix.EIO
	}
	return 0
}

// prw is one preadv2 or pwritev2 of p. raw: it is known to be short and not to
// sleep, so the scheduler is not told.
func prw(call, fd uintptr, p []byte, off int64, flags uintptr, raw bool) (int, syscall.Errno) {
	iov := unix.Iovec{Base: unsafe.SliceData(p)}
	iov.SetLen(len(p))
	for {
		var n uintptr
		var errno syscall.Errno
		// The offset's high half is an argument of its own; 64-bit kernels
		// take all of it from the first.
		if raw {
			n, _, errno = syscall.RawSyscall6(call, fd, uintptr(unsafe.Pointer(&iov)), 1, uintptr(off), uintptr(off>>32), flags)
		} else {
			n, _, errno = syscall.Syscall6(call, fd, uintptr(unsafe.Pointer(&iov)), 1, uintptr(off), uintptr(off>>32), flags)
		}
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}
