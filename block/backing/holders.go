package backing

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// holdersOf names who uses a block device, its partitions included, as far as the
// kernel shows it: mounts, and devices made of it.
func holdersOf(rdev uint64) string {
	dir := sysDir(rdev)
	dirs := []string{dir}
	if parts, err := filepath.Glob(dir + "/*/partition"); err == nil {
		for _, p := range parts {
			dirs = append(dirs, filepath.Dir(p))
		}
	}
	if sysText(dir+"/partition") != "" {
		dirs = append(dirs, dir+"/..")
	}
	var who []string
	for _, d := range dirs {
		who = append(who, mountsOf(sysText(d+"/dev"))...)
		entries, err := os.ReadDir(d + "/holders")
		if err != nil {
			continue
		}
		for _, e := range entries {
			who = append(who, "device "+e.Name()+" is made of it")
		}
	}
	return strings.Join(slices.Compact(who), ", ")
}

// mountsOf finds where a device is mounted: proc_pid_mountinfo(5), field 3 is its
// number and field 5 the place.
func mountsOf(number string) (where []string) {
	for _, line := range strings.Split(sysText("/proc/self/mountinfo"), "\n") {
		if f := strings.Fields(line); len(f) > 4 && f[2] == number && number != "" {
			where = append(where, "it is mounted at "+f[4])
		}
	}
	return where
}

// writtenAt finds where a device's file system is mounted writable. The last field of a
// line has the file system's options, and the one before it the device, which counts
// too, since some file systems have a number of their own.
func writtenAt(rdev uint64, number string) (where []string) {
	for _, line := range strings.Split(sysText("/proc/self/mountinfo"), "\n") {
		mount, fs, ok := strings.Cut(line, " - ")
		m, f := strings.Fields(mount), strings.Fields(fs)
		if !ok || len(m) < 5 || len(f) < 3 || !slices.Contains(strings.Split(f[2], ","), "rw") {
			continue
		}
		var st unix.Stat_t
		same := m[2] == number || strings.HasPrefix(f[1], "/") && unix.Stat(f[1], &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == rdev
		if same && number != "" {
			where = append(where, "it is mounted at "+m[4]+", and not read-only")
		}
	}
	return where
}

// writtenBeside fails if somebody else may write to storage that is to be exported
// read-only: readers would see a file system that does not hold together.
func (s *Store) writtenBeside(st *unix.Stat_t) error {
	if s.device {
		if who := writtenAt(st.Rdev, sysText(sysDir(st.Rdev)+"/dev")); len(who) > 0 {
			return fmt.Errorf("%w: %s", ErrInUse, who[0])
		}
		return nil
	}
	return loopOver(st, func(dir string) bool { return sysText(filepath.Dir(dir)+"/ro") == "0" })
}

// lockBelow locks the file below a loop device, so that it is not exported as well.
func (s *Store) lockBelow(rdev uint64, opt Options) error {
	how := unix.LOCK_EX
	if opt.ReadOnly {
		how = unix.LOCK_SH
	}
	path := sysText(sysDir(rdev) + "/loop/backing_file")
	if path == "" {
		return nil
	}
	fd, err := openFD(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK)
	if err != nil {
		return nil // deleted, or in another mount namespace: nobody here exports it
	}
	if err := unix.Flock(fd, how|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return fmt.Errorf("%w: %s below it is", ErrInUse, path)
	}
	s.below = fd
	return nil
}

// loopOver fails if a loop device uses the file. counts decides by the device's directory
// in sysfs whether it matters.
func loopOver(st *unix.Stat_t, counts func(dir string) bool) error {
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, l := range loops {
		var of unix.Stat_t
		if unix.Stat(sysText(l), &of) == nil && of.Dev == st.Dev && of.Ino == st.Ino && counts(filepath.Dir(l)) {
			return fmt.Errorf("%w: /dev/%s is made of it", ErrInUse, filepath.Base(filepath.Dir(filepath.Dir(l))))
		}
	}
	return nil
}

// heldError explains why a device cannot be opened exclusively.
func heldError(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return errors.Join(ErrInUse, err)
	}
	if who := holdersOf(st.Rdev); who != "" {
		return fmt.Errorf("%w: %s", ErrInUse, who)
	}
	return ErrInUse
}
