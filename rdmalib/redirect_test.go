package rdmalib

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A librdmacm that is bound as it goes, as some distributions link it, calls what it has not called
// before when its calls have been redirected.
func TestLibraryThatIsBoundAsItGoes(t *testing.T) {
	if _, err := os.Stat("/usr/include/rdma/rdma_user_cm.h"); err != nil {
		t.Skip("needs libibverbs-dev")
	}
	dir := t.TempDir()
	library, program := filepath.Join(dir, "librdmacm.so.1"), filepath.Join(dir, "redirect")
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-fplt", "-Wl,-z,lazy", "-o", library, "testdata/lazy.c"},
		{"-Ic", "-rdynamic", "-o", program, "testdata/redirect.c", "c/cm.c", library, "-ldl", "-lpthread"},
	} {
		args = append([]string{"-O1", "-Wall", "-Werror", "-Wno-unused-function", "-D_GNU_SOURCE"}, args...)
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
