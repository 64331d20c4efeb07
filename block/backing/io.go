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

// Flush makes all writes that have returned durable. Once it has failed it
// fails for the rest of the disk's life, also in other Stores: the kernel forgets what
// it could not write, so a later success would be untrue.
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
	if !s.lockOpen() {
		return true, unix.EBADF
	}
	defer s.unlock()
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
	if !s.lockOpen() {
		return unix.EBADF
	}
	defer s.unlock()
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
	if !s.lockOpen() {
		return unix.EBADF
	}
	defer s.unlock()
	if errno := s.reaches(off + int64(len(p))); errno != 0 {
		return errno
	}
	if fua {
		return s.writeThrough(p, off)
	}
	start := time.Now()
	errno := s.pwrite(s.fd, p, off, 0)
	s.writes.observe(time.Since(start), len(p))
	if errno == unix.EROFS {
		return s.heed(errno)
	}
	return errno
}

// pwrite writes all of p. The caller has checked everything.
func (s *Store) pwrite(fd uintptr, p []byte, off int64, flags uintptr) syscall.Errno {
	for len(p) > 0 {
		n, errno := prw(unix.SYS_PWRITEV2, fd, p[:min(len(p), maxSyscallIO)], off, flags, false)
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

// writeThrough is a write that is durable when it returns.
func (s *Store) writeThrough(p []byte, off int64) syscall.Errno {
	if e := s.flushFailed.Load(); e != 0 {
		return syscall.Errno(e)
	}
	if errno := s.beginSync(); errno != 0 {
		return errno
	}
	defer s.endSync()
	fd := s.syncFD()
	errno := s.pwrite(fd, p, off, unix.RWF_DSYNC)
	s.syncDone(fd)
	if errno == unix.EOPNOTSUPP || errno == unix.ENOSYS {
		if errno = s.pwrite(s.fd, p, off, 0); errno == 0 {
			return s.fdatasync()
		}
		return s.heed(errno)
	}
	if isOfEarlier(errno) && (!isNoRoom(errno) || s.pwrite(s.fd, p, off, 0) == 0) {
		// It did not fail for want of room for its own data: what could not be
		// written may be any earlier write.
		s.latch(errno, "a write with FUA")
	}
	if errno == 0 {
		s.heedCount()
		return syscall.Errno(s.flushFailed.Load())
	}
	return s.heed(errno)
}

func isNoRoom(errno syscall.Errno) bool { return errno == unix.ENOSPC || errno == unix.EDQUOT }

// heed returns the result of an operation that changes the storage. If the operation waits
// for writeback, its error may be of earlier writes: a flush finds out, and latches it. It
// uses the Store's own opening, since those for FUA writes may all have got the error
// already.
func (s *Store) heed(errno syscall.Errno) syscall.Errno {
	switch {
	case !isOfEarlier(errno):
	case errno == unix.EROFS:
		s.latch(errno, "a write") // the file system gave up
	default:
		_ = s.flushBy(unix.SYS_FDATASYNC, "fdatasync", s.syncOwn)
	}
	return errno
}

func (s *Store) flush() syscall.Errno {
	if s.readOnly {
		return 0
	}
	if !s.lockOpen() {
		return unix.EBADF
	}
	defer s.unlock()
	return s.fdatasync()
}

func (s *Store) fdatasync() syscall.Errno {
	return s.flushBy(unix.SYS_FDATASYNC, "fdatasync", s.sync)
}

// flushBy flushes by fsync or fdatasync of an opening.
func (s *Store) flushBy(call uintptr, name string, sync func(uintptr) syscall.Errno) syscall.Errno {
	if e := s.flushFailed.Load(); e != 0 {
		return syscall.Errno(e)
	}
	if errno := s.beginSync(); errno != 0 {
		return errno
	}
	defer s.endSync()
	if errno := sync(call); errno != 0 {
		s.latch(errno, name)
		return errno
	}
	// A file system that gave up has nothing left to write out, and is read-only.
	var fs unix.Statfs_t
	if !s.device && unix.Fstatfs(int(s.fd), &fs) == nil && fs.Flags&unix.ST_RDONLY != 0 {
		s.latch(unix.EROFS, "the file system")
	}
	s.heedCount()
	return syscall.Errno(s.flushFailed.Load())
}

func (s *Store) sync(call uintptr) syscall.Errno {
	fd := s.syncFD()
	defer s.syncDone(fd)
	return syncOf(fd, call)
}

func (s *Store) syncOwn(call uintptr) syscall.Errno { return syncOf(s.fd, call) }

func syncOf(fd, call uintptr) syscall.Errno {
	for {
		if _, _, errno := syscall.Syscall(call, fd, 0, 0); errno != unix.EINTR {
			return errno
		}
	}
}

func (s *Store) syncDone(fd uintptr) {
	if fd != s.fd {
		s.syncs <- fd
	}
}

func (s *Store) inRange(off, n int64) bool { return off >= 0 && n >= 0 && off <= s.Size()-n }

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
// sleep, so it bypasses the scheduler.
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
