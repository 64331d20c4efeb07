package initiators

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iscsi/libiscsitest"
)

// suiteVar asks for all of libiscsi's suite over iSER, which takes a quarter of an hour. libVar is, in the machine,
// the library that it is run with.
const (
	suiteVar = "IRONWARP_ISCSI_SUITE"
	libVar   = "IRONWARP_INTERPOSE"
)

// passedByTGT are the tests of libiscsi's suite that tgt 1.0.85 passes over iSER on soft-iWARP, with a thin disk.
//
//go:embed testdata/tgt.txt
var passedByTGT string

// TestLibiscsiISER runs the tests of libiscsi's suite that tgt passes over iSER, or, if it is asked to, all: libiscsi
// is a client of Linux' verbs, on soft-iWARP.
func TestLibiscsiISER(t *testing.T) {
	t.Attr("row", "libiscsi's suite over iSER on soft-iWARP: all tests that tgt passes there")
	if os.Getenv(insideVar) == "" {
		lib := filepath.Join(t.TempDir(), "interpose.so")
		if out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-o", lib, "testdata/interpose.c").CombinedOutput(); err != nil {
			t.Skipf("needs gcc: %v: %s", err, out)
		}
		t.Setenv(libVar, lib)
	}
	suite, err := libiscsitest.Find()
	if err != nil {
		t.Skipf("needs libiscsi-bin: %v", err)
	}
	if _, ran := inMachine(t, libVar, suiteVar); ran {
		return
	}
	s := newScene(t, len(kinds))
	suite.Preload = os.Getenv(libVar)
	names := strings.Fields(passedByTGT)
	if os.Getenv(suiteVar) != "" {
		names = suite.Tests(t.Context())
	}
	passed := 0
	for _, name := range names {
		verdicts := s.judge(suite, name)
		if slices.Contains(verdicts, libiscsitest.Passed) {
			passed++
		}
		if slices.Contains(verdicts, libiscsitest.Crashed) { // and what it had ejected or reserved is so still
			s.stop()
			s = newScene(t, len(kinds))
		}
	}
	s.stop()
	t.Logf("%d of %d tests are passed", passed, len(names))
}

// judge runs a test over the units, until it has passed over one.
func (s *scene) judge(suite libiscsitest.Suite, name string) (verdicts []libiscsitest.Verdict) {
	var log strings.Builder
	for lun := 0; lun < len(kinds) && !slices.Contains(verdicts, libiscsitest.Passed); lun++ {
		v, out := suite.Run(s.t.Context(), name, fmt.Sprintf("iser://%s/%s/%d", portal, targetName, lun), 40*time.Second)
		verdicts = append(verdicts, v)
		fmt.Fprintf(&log, "LUN %d: %s\n%s", lun, v, out[max(0, len(out)-1500):])
	}
	switch {
	case slices.Contains(verdicts, libiscsitest.Passed):
	case strings.Contains(passedByTGT, name+"\n"):
		s.t.Errorf("%s: %v\n%s", name, verdicts, log.String())
	default:
		s.t.Logf("%s: %v\n%s", name, verdicts, log.String())
	}
	return verdicts
}
