package target_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/iscsi/libiscsitest"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

// notPassed are the tests of libiscsi's suite that this target does not pass over any of the three
// units, and why.
var notPassed = map[string]string{
	"SCSI.Sanitize.CryptoErase":          "the data are not encrypted, so there is no key to change",
	"SCSI.WriteSame10.UnmapUntilEnd":     "it unmaps with data that are not zeroes, and expects zeroes; SBC-3 has the data written then",
	"SCSI.GetLBAStatus.UnmapSingle":      "it expects an answer about another block than it asks for, unless a physical block is a logical one; and where that is of 4096 bytes it writes more than one command moves",
	"SCSI.WriteAtomic16":                 "a file is not written atomically, so nothing promises it",
	"iSCSI.iSCSITMF.LUNResetSimpleAsync": "libiscsi 1.19 looks for the answer to the reset before it has sent it, and so fails at whatever target; what it does next spoils its memory",
}

// partly are tests that go through the kinds of SANITIZE and skip the one that is not there.
var partly = map[string]string{
	"SCSI.Sanitize.Readonly":     "SANITIZE CRYPTO_ERASE",
	"SCSI.Sanitize.Reservations": "SANITIZE CRYPTO_ERASE",
}

// why returns the reason of a test or of its family.
func why(name string) string {
	return notPassed[name] + notPassed[name[:strings.LastIndex(name, ".")]]
}

// slowMedium takes a tenth of a second for what fills a buffer: as long for the whole disk as a test needs that
// looks at a unit while it is sanitized.
type slowMedium struct{ lu.Medium }

type slowQueue struct{ block.Queue }

func (m slowMedium) NewQueue(f func()) block.Queue { return slowQueue{m.Medium.NewQueue(f)} }

func (q slowQueue) Do(op block.Op, buf []byte, off, n int64, fl block.Flags, done block.Completion) bool {
	if op != block.OpWrite || len(buf) < lu.MaxTransfer {
		return q.Queue.Do(op, buf, off, n, fl, done)
	}
	time.AfterFunc(100*time.Millisecond, func() { q.Queue.Do(op, buf, off, n, fl, done) })
	return false
}

const slowLUN = 3

// TestLibiscsiSuite runs libiscsi's suite, a process for each test, over a fixed, a removable (of blocks of
// 4096 bytes) and a read-only unit, until it has passed over one of them without being skipped. Nobody is asked
// whether he is there: tests sleep for a minute.
func TestLibiscsiSuite(t *testing.T) {
	suite, err := libiscsitest.Find()
	if err != nil {
		t.Skipf("needs iscsi-test-cu: %v", err)
	}
	only, run := os.LookupEnv("IRONWARP_ISCSI_SUITE")
	if !run {
		t.Skip("300 processes take minutes: set IRONWARP_ISCSI_SUITE, to a part of the names or to nothing")
	}
	s := serve(t, target.Config{Ping: -1}, nil, unit{size: 100 << 20}, unit{size: 100 << 20, removable: true, block: 4096}, unit{size: 100 << 20, readOnly: true},
		unit{size: 100 << 20, medium: func(m lu.Medium) lu.Medium { return slowMedium{m} }})
	all, passed := 0, 0
	for _, name := range suite.Tests(t.Context()) {
		if !strings.Contains(name, only) {
			continue
		}
		all++
		var verdicts []libiscsitest.Verdict
		first, end, limit := 0, slowLUN, 40*time.Second
		if name == "SCSI.Sanitize.Reset" {
			first, end, limit = slowLUN, slowLUN+1, 160*time.Second // it looks every minute whether it is over
		}
		var mayLack []string
		if part := partly[name]; part != "" {
			mayLack = []string{part}
		}
		for lun := first; lun < end && !slices.Contains(verdicts, libiscsitest.Passed); lun++ {
			v, out := suite.Run(t.Context(), name, fmt.Sprintf("iscsi://%s/%s/%d", s.address, targetName, lun), limit, mayLack...)
			if verdicts = append(verdicts, v); (v == libiscsitest.Failed || v == libiscsitest.Crashed) && why(name) == "" {
				t.Logf("%s, LUN %d: %s\n%s", name, lun, v, last(out, 40))
			}
		}
		switch reason := why(name); {
		case slices.Contains(verdicts, libiscsitest.Passed):
			passed++
			if reason != "" {
				t.Errorf("%s is passed, and not noted so", name)
			}
		case reason == "":
			t.Errorf("%s: %v", name, verdicts)
		default:
			t.Logf("%s: %v: %s", name, verdicts, reason)
		}
	}
	t.Logf("%d of %d tests are passed", passed, all)
}

func last(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
