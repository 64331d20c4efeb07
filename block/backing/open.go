package backing

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
)

// Errors of Open, to be matched with errors.Is. A missing file is
// fs.ErrNotExist, an unreadable one fs.ErrPermission.
var (
	ErrNotStorage = errors.New("backing: neither a regular file nor a block device")
	ErrInUse      = errors.New("backing: in use by another export or program")
	ErrEmpty      = errors.New("backing: size is zero")
	ErrReadOnly   = errors.New("backing: the storage cannot be written")
	ErrPartSector = fmt.Errorf("backing: size is no multiple of %d bytes", sector)
)

// OpenError is why Open failed.
type OpenError struct {
	Path   string
	Reason string // what was found and what to do
	Err    error
}

func (e *OpenError) Error() string {
	return fmt.Sprintf("open %s as a disk: %s", e.Path, e.Reason)
}

// Unwrap returns the cause.
func (e *OpenError) Unwrap() error { return e.Err }

// Options of Open.
type Options struct {
	// ReadOnly opens the storage for reading only and shares it with other
	// read-only exports; otherwise the Store excludes every other.
	ReadOnly bool
	// Records is a directory for the records of disks that cannot have them as an
	// extended attribute.
	Records string
	// Repair begins a new life of a disk that has lost writes: for those who have it
	// attached all I/O fails, and those who attach it anew get what the storage has.
	Repair bool
	// NoFollow refuses a symbolic link at the path's end.
	NoFollow bool
	// Admit, if set, is called with the disk's UUID before the disk is used. Open
	// returns its error, and then nothing was done to the disk.
	Admit func(disk block.ID) error

	root string // of /sys and /proc, in tests
}

// Open opens the regular file or block device at path as a disk and locks it
// (flock: exclusively, or shared when ReadOnly), so that a disk that somebody may
// write is never exported twice. The error is an *OpenError.
func Open(path string, opt Options) (*Store, error) {
	fail := func(err error) (*Store, error) {
		return nil, &OpenError{Path: path, Reason: reason(err, opt), Err: err}
	}
	// Its kind is checked before it is opened: opening a fifo or a tape has effects.
	look := os.Stat
	if opt.NoFollow {
		look = os.Lstat
	}
	fi, err := look(path)
	if err == nil {
		err = checkKind(fi.Mode())
	}
	if err != nil {
		return fail(err)
	}
	flags := unix.O_RDWR
	if opt.ReadOnly {
		flags = unix.O_RDONLY
	}
	if opt.NoFollow {
		flags |= unix.O_NOFOLLOW
	}
	if fi.Mode()&fs.ModeDevice != 0 && !opt.ReadOnly {
		flags |= unix.O_EXCL // nobody has it mounted, or made a device of it
	}
	fd, err := openFD(path, flags|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_LARGEFILE)
	if err == unix.EBUSY {
		err = heldError(path)
	}
	if err != nil {
		return fail(err)
	}
	s, err := newStore(path, fd, opt)
	if err != nil {
		unix.Close(fd)
		return fail(err)
	}
	if err := s.begin(opt); err != nil {
		s.closeAll()
		return fail(err)
	}
	return s, nil
}

// begin opens what a Store needs beside its descriptor, and begins its life.
func (s *Store) begin(opt Options) error {
	if !s.readOnly {
		s.syncs = make(chan uintptr, maxSyncs)
		for range maxSyncs {
			fd, err := openFD(fmt.Sprintf("/proc/self/fd/%d", s.fd), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_LARGEFILE)
			if err != nil {
				return fmt.Errorf("open it once more for flushes: %w", err)
			}
			s.syncs <- uintptr(fd)
		}
	}
	if s.device {
		if err := s.lockBelow(s.opened.Rdev, opt); err != nil {
			return err
		}
	}
	if !s.device && !s.readOnly {
		s.fsErrors = errorsOf(cmp.Or(opt.root, "/"), s.opened.Dev)
	}
	return s.beginLife(&s.opened, opt)
}

func checkKind(m fs.FileMode) error {
	switch {
	case m.IsRegular(), m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0:
		return nil
	case m.IsDir():
		return fmt.Errorf("%w: it is a directory", ErrNotStorage)
	case m&fs.ModeNamedPipe != 0:
		return fmt.Errorf("%w: it is a fifo", ErrNotStorage)
	case m&fs.ModeSocket != 0:
		return fmt.Errorf("%w: it is a socket", ErrNotStorage)
	case m&fs.ModeSymlink != 0:
		return fmt.Errorf("%w: it is a symbolic link", ErrNotStorage)
	case m&fs.ModeCharDevice != 0:
		return fmt.Errorf("%w: it is a character device", ErrNotStorage)
	}
	return fmt.Errorf("%w: it is %v", ErrNotStorage, m.Type())
}

// reason says what to do about err.
func reason(err error, opt Options) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file; create it first (truncate -s SIZE FILE makes an empty disk)"
	case errors.Is(err, unix.EROFS):
		return "its file system is mounted read-only; export it read-only"
	case errors.Is(err, fs.ErrPermission) && opt.ReadOnly:
		return "permission denied; make it readable for the daemon's user"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied; make it writable for the daemon's user, or export it read-only"
	case errors.Is(err, ErrInUse) && err != ErrInUse:
		return err.Error()[len("backing: "):] + "; end that first"
	case errors.Is(err, ErrInUse) && opt.ReadOnly:
		return "it is in use by another export or program that may write it (flock); end that first"
	case errors.Is(err, ErrInUse):
		return "it is in use by another export or program (flock); end that first, or export it read-only in both places"
	case errors.Is(err, ErrEmpty):
		return "its size is zero; give it a size first (truncate -s SIZE FILE)"
	case errors.Is(err, ErrPartSector):
		return fmt.Sprintf("its size is no multiple of %d bytes, and what is beyond the last whole sector could not be reached; `truncate -s %%%d FILE` adds zeroes to make it one", sector, sector)
	case errors.Is(err, ErrReadOnly):
		return "the device is set read-only; export it read-only"
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return err.Error()
}

func openFD(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// lock takes the storage for this Store. After each close of a writer udev briefly has a
// shared lock on a device, to look at its content.
func (s *Store) lock(how int) error {
	for end := time.Now().Add(lockTime); ; time.Sleep(lockTime / 100) {
		err := unix.Flock(int(s.fd), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case err != unix.EWOULDBLOCK && err != unix.EINTR:
			return fmt.Errorf("lock: %w", err)
		case !s.device || time.Now().After(end):
			return ErrInUse
		}
	}
}

func newStore(path string, fd int, opt Options) (*Store, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if k := st.Mode & unix.S_IFMT; k != unix.S_IFREG && k != unix.S_IFBLK {
		return nil, fmt.Errorf("%w: it was exchanged while it was being opened", ErrNotStorage)
	}
	s := &Store{
		path: path, fd: uintptr(fd), below: -1, opened: st, readOnly: opt.ReadOnly,
		device: st.Mode&unix.S_IFMT == unix.S_IFBLK, logical: 1, physical: 4096,
	}
	s.size.Store(st.Size)
	how := unix.LOCK_EX
	if opt.ReadOnly {
		how = unix.LOCK_SH
	}
	if err := s.lock(how); err != nil {
		return nil, err
	}
	if opt.ReadOnly {
		if err := s.writtenBeside(&st); err != nil {
			return nil, err
		}
	} else if !s.device {
		if err := loopOver(&st, func(string) bool { return true }); err != nil {
			return nil, err
		}
	}
	if s.device {
		if err := s.probeDevice(uint64(st.Rdev)); err != nil {
			return nil, err
		}
	} else if !opt.ReadOnly {
		// Punching where the file has no data changes nothing and shows whether
		// the file system can.
		s.discard = unix.Fallocate(int(s.fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, st.Size, 4096) == nil
	}
	if s.Size() <= 0 {
		return nil, ErrEmpty
	}
	if s.Size()%sector != 0 {
		return nil, ErrPartSector
	}
	if !opt.ReadOnly {
		s.zeroes = make([]byte, zeroChunk)
	}
	return s, nil
}

// probeDevice reads a block device's properties.
func (s *Store) probeDevice(rdev uint64) error {
	bytes, err := s.sizeNow()
	if err != nil {
		return err
	}
	s.size.Store(bytes)
	var n int32
	s.logical = 512
	if s.ioctl(unix.BLKSSZGET, unsafe.Pointer(&n)) == 0 && n > 0 {
		s.logical = int(n)
	}
	if s.ioctl(unix.BLKPBSZGET, unsafe.Pointer(&n)) == 0 && n > 0 {
		s.physical = int(n)
	}
	if !s.readOnly && s.ioctl(unix.BLKROGET, unsafe.Pointer(&n)) == 0 && n != 0 {
		return ErrReadOnly
	}
	s.discard = !s.readOnly && queueFlag(rdev, "discard_max_bytes")
	s.spinning = queueFlag(rdev, "rotational")
	return nil
}

// queueFlag reports that a property of a block device's queue is not 0. A
// partition's queue is its disk's.
func queueFlag(rdev uint64, name string) bool {
	dir := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(rdev), unix.Minor(rdev))
	for _, q := range []string{"queue/", "../queue/"} {
		if b, err := os.ReadFile(dir + q + name); err == nil {
			return len(b) > 0 && b[0] != '0'
		}
	}
	return false
}
