package backing

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
)

// A life of a disk begins when a Store opens it for writing. It goes on in the next
// Store if the same page cache still has everything that was written and every error of
// writeback that the kernel has not reported yet. That holds as long as the kernel runs,
// the inode stays in memory (or the device is there), and no Store died in a sync
// (unsettled.go). The next life keeps the writes of one that ended with a flush;
// otherwise it has only what is on the storage.
// An error of writeback stays with the life, since nobody knows which writes it lost.

// keptLives bounds the lives that a disk keeps. To a client that was away while more of
// them ended, writes count as possibly lost.
const keptLives = 16

// beginLife finds out which disk this is and which life of it, and records both.
//
// unlocked: nobody else has the Store yet.
func (s *Store) beginLife(st *unix.Stat_t, opt Options) error {
	var mark string
	var derived block.ID
	if s.device {
		mark = deviceName(st.Rdev)
		derived = block.NamedID("device", mark)
		s.keeper.fd = -1
	} else {
		mark = markOf(int(s.fd), st)
		derived = block.NamedID("file", mark)
		s.keeper.fd = int(s.fd)
	}
	if opt.Records != "" {
		s.keeper.file = filepath.Join(opt.Records, idKey(derived))
	}
	old, err := s.keeper.load()
	if err != nil {
		return err
	}
	if old != nil && old.Mark != mark {
		s.copyOf, old = old.Disk, nil
	}
	cache := s.cache()
	// Writes through this kernel make the file neither shorter nor older than it was when
	// last opened: somebody has replaced its content, as backup software does.
	restored := old != nil && old.Open && !s.device && old.Changed != 0 && (st.Size < old.Size || st.Mtim.Nano() < old.Changed)
	goesOn := old != nil && old.Open && !restored && cache != "" && old.Cache == cache && settled(int(s.fd))
	r := record{Version: recordVersion, Disk: derived, Mark: mark, Life: block.NewID(), Open: true, Cache: cache, Size: st.Size, Changed: st.Mtim.Nano()}
	if n, ok := s.fsErrors.count(); ok {
		r.FSErrors = &n
	}
	if old != nil {
		r.Disk, r.Kept = old.Disk, old.Kept
	}
	if opt.Admit != nil {
		if err := opt.Admit(r.Disk); err != nil {
			return err
		}
	}
	if old != nil {
		switch {
		case old.Fault != nil && opt.Repair && !s.readOnly:
			if errno := s.forgetCache(); errno != 0 {
				return fmt.Errorf("write out what the page cache has: %w", errno)
			}
			s.newLife = "it had lost acknowledged writes, and its administrator has seen to it"
		case old.Fault != nil:
			r.Life, r.Fault = old.Life, old.Fault
			s.flushFailed.Store(int32(old.Fault.Errno))
		case goesOn:
			r.Life, r.FSErrors = old.Life, cmp.Or(old.FSErrors, r.FSErrors)
		case old.Open:
			if restored {
				r.Kept = nil
			}
			// The kernel may count pages as clean that it could not write.
			if s.readOnly {
				break
			}
			if errno := s.forgetCache(); errno != 0 {
				r.Life, r.Fault = old.Life, newFault(errno, "fsync")
				s.flushFailed.Store(int32(errno))
			} else if restored {
				s.newLife = "it is shorter, or its time of change is earlier, than when it was last opened: somebody else has written to it, such as backup software that restored it"
			} else {
				s.newLife = whyLost(old.Cache, cache)
			}
		case s.device || old.Size == st.Size && old.Changed == st.Mtim.Nano():
			r.Kept = append(slices.Clone(old.Kept), old.Life)
			r.Kept = r.Kept[max(0, len(r.Kept)-keptLives):]
			s.newLife, s.keepsLast = "the last one ended in good order, with all writes flushed", true
		default:
			r.Kept = nil // somebody else has written to it
			s.newLife = "its size or time of change is not what it was when the last one ended: somebody else has written to it"
		}
	}
	if s.readOnly {
		// Its flushes do nothing, so it vouches for no life that may have writes to flush.
		r.Life = block.NewID()
		s.rec = r
		return nil
	}
	if setHint(int(s.fd), hintUnsettled) != 0 {
		r.Cache = "" // this life must not go on
	}
	s.rec = r
	s.syncing.calls = 1 // as beginSync; endSync follows
	// If this fails, the record is that of an earlier life, which must not pass for
	// this one or go on.
	s.unkept = s.keeper.save(&r)
	s.syncing.settles = s.unkept == nil
	if s.keeper.hasFailedSync() {
		s.latch(s.keeper.attrErrno, "fsync")
	}
	s.endSync()
	return nil
}

// endLife flushes everything and records that the life has kept its writes.
func (s *Store) endLife() error {
	if s.readOnly || s.flushFailed.Load() != 0 {
		return nil
	}
	if errno := s.flushBy(unix.SYS_FSYNC, "the last fsync", s.sync); errno != 0 {
		return fmt.Errorf("flush %s: %w", s.path, errno)
	}
	if s.unkept != nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(s.fd), &st); err != nil {
		return err
	}
	s.recMu.Lock()
	r := s.rec
	s.recMu.Unlock()
	r.Open, r.Cache, r.Size, r.Changed = false, "", st.Size, st.Mtim.Nano()
	return s.keeper.save(&r)
}

// latch records durably that this life has lost writes.
func (s *Store) latch(errno syscall.Errno, call string) {
	if !s.flushFailed.CompareAndSwap(0, int32(errno)) {
		return
	}
	if s.beginSync() == 0 { // recording it syncs, too
		defer s.endSync()
	}
	s.recMu.Lock()
	s.rec.Fault = newFault(errno, call)
	r := s.rec
	s.recMu.Unlock()
	// Without the lock, since the storage may not answer any more.
	if err := s.keeper.save(&r); err != nil {
		s.recMu.Lock()
		s.unkept = cmp.Or(s.unkept, err)
		s.recMu.Unlock()
		s.breakLife()
	}
}

// forgetCache writes the page cache out and empties it, so that reads return what the
// storage has: after an error the kernel keeps pages that it could not write, as clean.
func (s *Store) forgetCache() syscall.Errno {
	// The kernel reports each error once to each opening; the first may be an old one.
	_ = unix.Fsync(int(s.fd))
	for range maxSyncs {
		_ = s.sync(unix.SYS_FSYNC)
	}
	if errno := s.sync(unix.SYS_FSYNC); errno != 0 {
		return errno
	}
	if s.device && s.ioctl(unix.BLKFLSBUF, unsafe.Pointer(nil)) == 0 {
		return 0
	}
	errno, _ := unix.Fadvise(int(s.fd), 0, 0, unix.FADV_DONTNEED).(syscall.Errno)
	return errno
}

// whyLost is why a life that has not ended does not go on. was is the page cache that had
// its writes, is the present one.
func whyLost(was, is string) string {
	boot, _, _ := strings.Cut(is, " ")
	switch {
	case was == "" || is == "":
		return "the last one was not ended in good order, and this kernel cannot tell whether it still has all that was written"
	case !strings.HasPrefix(was, boot):
		return "this host was rebooted, and the last one was not ended in good order: what was not flushed may be lost"
	case was != is:
		return "the device was away, and the last one was not ended in good order: what was not flushed may be lost"
	}
	return "the last one was not ended in good order: it was killed while it flushed, or the kernel has dropped the file from its memory since, and an error of writing it out may have been missed"
}

// NewLife is why a new life of the disk has begun with this Store, and whether it keeps
// all writes of the last one; "" if that life goes on, or there was none.
func (s *Store) NewLife() (why string, keeps bool) { return s.newLife, s.keepsLast }

// Identity returns which disk this is, and which life of it.
//
// unlocked: they stay as beginLife sets them.
func (s *Store) Identity() block.Identity { return block.Identity{Disk: s.rec.Disk, Life: s.rec.Life} }

// Keeps reports whether all writes that had returned in an earlier life are present.
//
// unlocked: they stay as beginLife sets them.
func (s *Store) Keeps(life block.ID) bool { return slices.Contains(s.rec.Kept, life) }

// Fault is why writes of this life that had returned were lost, "" if none were.
func (s *Store) Fault() string {
	s.recMu.Lock()
	defer s.recMu.Unlock()
	if s.rec.Fault == nil {
		return ""
	}
	return s.rec.Fault.String()
}

// CopyOf is the disk of which this file is a copy, as the record shows that was found
// with it; zero if it is none.
func (s *Store) CopyOf() block.ID { return s.copyOf }

// Unkept is why the disk's record could not be written: clients with unflushed writes
// have to attach it anew after the next start. Nil if it could.
func (s *Store) Unkept() error {
	s.recMu.Lock()
	defer s.recMu.Unlock()
	return s.unkept
}
