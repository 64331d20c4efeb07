package ebpf

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// r0 = 2; exit
var good = []Instruction{New(0xb7, 0, 0, 2), New(0x95, 0, 0, 0)}

func TestTheKernelTakesAProgram(t *testing.T) {
	fd, err := Load(unix.BPF_PROG_TYPE_XDP, good)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("loading takes root and a kernel with eBPF: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	// The control: one that returns what it has not set is refused.
	if fd, err := Load(unix.BPF_PROG_TYPE_XDP, good[1:]); err == nil {
		unix.Close(fd)
		t.Error("a program without a result was taken")
	}
}

func TestAnEmptyProgramIsAnError(t *testing.T) {
	if _, err := Load(unix.BPF_PROG_TYPE_XDP, nil); err == nil {
		t.Error("an empty program was loaded")
	}
}
