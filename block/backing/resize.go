package backing

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrDeviceSize is wrapped by Resize where a block device has another size than is asked for.
var ErrDeviceSize = errors.New("a block device gets its size from what is below it")

// sizeNow returns how many bytes the file or device has.
func (s *Store) sizeNow() (int64, error) {
	if !s.device {
		var st unix.Stat_t
		err := unix.Fstat(int(s.fd), &st)
		return st.Size, err
	}
	var n uint64
	if errno := s.ioctl(unix.BLKGETSIZE64, unsafe.Pointer(&n)); errno != 0 {
		return 0, fmt.Errorf("ask for the device's size: %w", errno)
	}
	return int64(n), nil
}

// Grow takes over the size of a file or device that somebody has made longer, up to its last
// whole sector, and reports whether it has grown. One that has become shorter keeps its size,
// and its end fails with EIO. It fails if the size cannot be found out, and with EBADF after
// Close.
func (s *Store) Grow() (grown bool, err error) {
	if !s.lockOpen() {
		return false, unix.EBADF
	}
	defer s.unlock()
	n, err := s.sizeNow()
	if err != nil {
		return false, err
	}
	return s.raise(n - n%sector), nil
}

func (s *Store) raise(n int64) bool {
	for {
		was := s.size.Load()
		if n <= was || s.size.CompareAndSwap(was, n) {
			return n > was
		}
	}
}

// Resize makes a file n bytes long, durably: longer at once, or shorter, which the caller
// asks for only while nobody uses the disk. What is added reads as zeroes. It fails with
// ErrPartSector and ErrEmpty; with ErrReadOnly; for a device, which is only looked at, with
// ErrDeviceSize if it has another size, or has become smaller; with the errors of the
// file system, after which the size is what it was or n; and with EBADF after Close.
func (s *Store) Resize(n int64) error {
	switch {
	case n <= 0:
		return ErrEmpty
	case n%sector != 0:
		return ErrPartSector
	case s.readOnly:
		return ErrReadOnly
	case !s.lockOpen():
		return unix.EBADF
	}
	defer s.unlock()
	if s.device {
		return s.resizeDevice(n)
	}
	if n < s.Size() {
		// Otherwise the next opening would take the file for one that was restored.
		s.recMu.Lock()
		s.rec.Size = min(s.rec.Size, n)
		r := s.rec
		s.recMu.Unlock()
		if err := s.keeper.save(&r); err != nil {
			return fmt.Errorf("record the size of %s: %w", s.path, err)
		}
		s.size.Store(n)
	}
	if err := unix.Ftruncate(int(s.fd), n); err != nil {
		return fmt.Errorf("resize %s: %w", s.path, err)
	}
	if errno := s.flush(); errno != 0 {
		return fmt.Errorf("make the size of %s durable: %w", s.path, errno)
	}
	s.raise(n)
	return nil
}

func (s *Store) resizeDevice(n int64) error {
	has, err := s.sizeNow()
	if err != nil {
		return err
	}
	if n != has-has%sector || n < s.Size() {
		return fmt.Errorf("%s has %d bytes: %w", s.path, has, ErrDeviceSize)
	}
	s.raise(n)
	return nil
}
