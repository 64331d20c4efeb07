package selinux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/fabric/policy"
)

// dir is where selinuxfs is mounted.
const dir = "/sys/fs/selinux"

// Mount is a mounted selinuxfs: SELinux is active on this host.
type Mount struct{ dir string }

// Active returns the selinuxfs of this host, if it is mounted. That, and not that the
// kernel tells labels, means SELinux: AppArmor answers in /proc/self/attr/current, and in
// some kernels by SO_PEERSEC, as well.
func Active() (m Mount, ok bool) {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	return Mount{dir}, err == nil && uint32(s.Type) == unix.SELINUX_MAGIC
}

// ErrNoPolicy means that SELinux is active and no policy is loaded, so that the kernel
// would allow everything.
var ErrNoPolicy = errors.New("SELinux has no policy loaded")

// ErrUnknownClass means that the loaded policy does not have the class of partitions.
var ErrUnknownClass = errors.New("the loaded policy has no class rdma_partition with the permission modify; load a module that has")

// ErrUnknownLabel means that a label is no context of the loaded policy.
var ErrUnknownLabel = errors.New("the loaded policy has no such context")

// class is what the loaded policy calls rdma_partition and its permission.
type class struct {
	index uint16
	bit   uint32
}

// class reads the number of the class and the bit of its permission. It fails with
// ErrNoPolicy, ErrUnknownClass, or where selinuxfs cannot be read.
func (m Mount) class() (c class, err error) {
	index, err := m.number("class/rdma_partition/index", 16)
	if err == nil {
		var n uint64
		n, err = m.number("class/rdma_partition/perms/modify", 6)
		if err == nil && (index == 0 || n < 1 || n > 32) {
			err = fmt.Errorf("class %d, permission %d", index, n)
		}
		c = class{uint16(index), 1 << ((n - 1) & 31)}
	}
	if errors.Is(err, fs.ErrNotExist) {
		// Every policy has the class process; without one the directory is empty.
		if _, perr := os.Stat(m.path("class/process")); errors.Is(perr, fs.ErrNotExist) {
			return class{}, ErrNoPolicy
		}
		return class{}, ErrUnknownClass
	}
	if err != nil {
		return class{}, fmt.Errorf("look up class rdma_partition: %w", err)
	}
	return c, nil
}

func (m Mount) path(name string) string { return filepath.Join(m.dir, name) }

// number reads a file with a decimal number.
func (m Mount) number(name string, bits int) (uint64, error) {
	b, err := os.ReadFile(m.path(name))
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text(b), 10, bits)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", m.path(name), err)
	}
	return n, nil
}

// text is what the kernel has written without the NUL or line end behind it.
func text(b []byte) string { return strings.TrimRight(string(b), "\x00\n") }

// transact writes a question to a file of selinuxfs and returns the answer.
func (m Mount) transact(name, question string) (string, error) {
	f, err := os.OpenFile(m.path(name), os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := f.WriteString(question); err != nil {
		return "", err
	}
	b := make([]byte, maxLabel)
	n, err := f.Read(b)
	if err != nil {
		return "", err
	}
	return text(b[:n]), nil
}

// Canonical returns a context as the kernel writes it, which is the same for equal
// contexts: categories are sorted, ranges shortened. It fails with policy.ErrContext where
// it is none, with ErrUnknownLabel where the loaded policy has no such one, and where the kernel does not answer.
func (m Mount) Canonical(context string) (string, error) {
	if _, err := policy.ParseContext(context); err != nil {
		return "", err
	}
	c, err := m.transact("context", context+"\x00")
	if errors.Is(err, unix.EINVAL) {
		return "", fmt.Errorf("%s: %w", context, ErrUnknownLabel)
	}
	if err != nil {
		return "", fmt.Errorf("ask SELinux about the context %s: %w", context, err)
	}
	return c, nil
}

// answer is what the policy says of a subject and a partition.
type answer struct {
	allowed    bool
	permissive bool // what is denied to the subject is let pass
}

// flagPermissive is AVD_FLAGS_PERMISSIVE of the kernel's avc.h: the subject's type is permissive.
const flagPermissive = 1

// ask asks the kernel. It fails as Canonical does.
func (m Mount) ask(subject, partition string, c class) (answer, error) {
	for _, label := range []string{subject, partition} {
		// A blank in a label would make one question of another.
		if _, err := policy.ParseContext(label); err != nil {
			return answer{}, err
		}
	}
	s, err := m.transact("access", fmt.Sprintf("%s %s %d", subject, partition, c.index))
	if errors.Is(err, unix.EINVAL) {
		for _, label := range []string{subject, partition} {
			if _, err := m.Canonical(label); err != nil {
				return answer{}, err
			}
		}
	}
	if err != nil {
		return answer{}, fmt.Errorf("ask SELinux whether %s may modify %s: %w", subject, partition, err)
	}
	var allowed, decided, auditAllow, auditDeny, sequence, flags uint32
	if _, err := fmt.Sscanf(s, "%x %x %x %x %d %x", &allowed, &decided, &auditAllow, &auditDeny, &sequence, &flags); err != nil {
		return answer{}, fmt.Errorf("ask SELinux whether %s may modify %s: its answer %q: %w", subject, partition, s, err)
	}
	return answer{allowed&decided&c.bit != 0, flags&flagPermissive != 0}, nil
}
