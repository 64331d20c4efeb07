// Package ebpf loads small eBPF programs (RFC 9669) that are written here by
// hand.
package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Instruction is an encoded instruction (RFC 9669 section 3).
type Instruction [8]byte

// New encodes an instruction: regs has the source register in its high half and
// the destination in its low one, as little-endian machines do.
func New(code, regs byte, offset uint16, imm uint32) (i Instruction) {
	i[0], i[1] = code, regs
	binary.NativeEndian.PutUint16(i[2:], offset)
	binary.NativeEndian.PutUint32(i[4:], imm)
	return i
}

// Load gives the kernel a program of a type (unix.BPF_PROG_TYPE_...) and returns a file
// descriptor, which the caller closes: what the program is attached to keeps it. It
// fails with the kernel's error, which is EPERM without CAP_BPF and CAP_NET_ADMIN.
func Load(kind uint32, program []Instruction) (fd int, err error) {
	if len(program) == 0 {
		return -1, errors.New("load an eBPF program: it is empty")
	}
	license := [...]byte{'A', 'p', 'a', 'c', 'h', 'e', 0}
	attr := struct { // union bpf_attr of BPF_PROG_LOAD, its first members
		kind, count    uint32
		code, license  uint64
		level, size    uint32
		log            uint64
		version, flags uint32
	}{
		kind: kind, count: uint32(len(program)),
		code: uint64(uintptr(unsafe.Pointer(&program[0]))), license: uint64(uintptr(unsafe.Pointer(&license))),
	}
	n, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(program)
	runtime.KeepAlive(&license)
	if errno != 0 {
		return -1, fmt.Errorf("load an eBPF program: %w", errno)
	}
	return int(n), nil
}
