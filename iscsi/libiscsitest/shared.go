package libiscsitest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/iscsitest"
)

// shared pairs the tests of libiscsi's suite with the cases of package iscsitest that ask the same of a target.
var shared = []struct{ test, id string }{
	{"SCSI.CompareAndWrite.Simple", "scsi.compare-and-write"},
	{"SCSI.CompareAndWrite.Miscompare", "scsi.compare-and-write"},
	{"SCSI.ExtendedCopy.Simple", "scsi.extended-copy"},
	{"SCSI.ExtendedCopy.DescrType", "scsi.extended-copy-unknown"},
	{"SCSI.GetLBAStatus.Simple", "scsi.lba-status"},
	{"SCSI.GetLBAStatus.UnmapSingle", "scsi.lba-status-unmapped"},
	{"SCSI.GetLBAStatus.BeyondEol", "scsi.lba-status-beyond"},
	{"SCSI.Inquiry.Standard", "scsi.inquiry"},
	{"SCSI.Inquiry.AllocLength", "data.inquiry-allocation"},
	{"SCSI.Inquiry.EVPD", "scsi.inquiry-page-without-evpd"},
	{"SCSI.Inquiry.SupportedVPD", "scsi.vpd-pages"},
	{"SCSI.ModeSense6.AllPages", "scsi.mode-sense"},
	{"SCSI.OrWrite.Simple", "scsi.orwrite"},
	{"SCSI.ProutRegister.Simple", "reservation.register"},
	{"SCSI.ProutClear.Simple", "reservation.clear"},
	{"SCSI.ProutPreempt.RemoveRegistration", "reservation.preempt"},
	{"SCSI.ProutReserve.AccessWE", "reservation.type-1"},
	{"SCSI.ProutReserve.AccessEA", "reservation.type-3"},
	{"SCSI.ProutReserve.AccessWERO", "reservation.type-5"},
	{"SCSI.ProutReserve.AccessEARO", "reservation.type-6"},
	{"SCSI.ProutReserve.AccessWEAR", "reservation.type-7"},
	{"SCSI.ProutReserve.AccessEAAR", "reservation.type-8"},
	{"SCSI.ProutReserve.OwnershipWE", "reservation.unregister-releases"},
	{"SCSI.Read6.Simple", "scsi.read-write-6"},
	{"SCSI.Read10.Simple", "data.read"},
	{"SCSI.Read10.BeyondEol", "scsi.read-last"},
	{"SCSI.Read10.ZeroBlocks", "scsi.transfer-zero"},
	{"SCSI.Read12.Simple", "scsi.read-write-12"},
	{"SCSI.Read16.Simple", "scsi.read-write-16"},
	{"SCSI.ReadCapacity10.Simple", "scsi.capacity"},
	{"SCSI.ReadCapacity16.Simple", "scsi.capacity"},
	{"SCSI.ReportSupportedOpcodes.Simple", "scsi.operation-codes"},
	{"SCSI.Reserve6.2Initiators", "reservation.reserve-6"},
	{"SCSI.Unmap.Simple", "scsi.unmap"},
	{"SCSI.Verify10.Mismatch", "scsi.verify"},
	{"SCSI.Write10.Simple", "data.write"},
	{"SCSI.Write10.BeyondEol", "scsi.write-behind"},
	{"SCSI.Write10.ZeroBlocks", "scsi.transfer-zero"},
	{"SCSI.WriteSame10.Simple", "scsi.write-same"},
	{"SCSI.WriteSame16.Simple", "scsi.write-same"},
	{"iSCSI.iSCSIResiduals.Read10Residuals", "data.read-overflow"},
	{"iSCSI.iSCSIResiduals.Read10Residuals", "data.read-underflow"},
	{"iSCSI.iSCSIResiduals.Write10Residuals", "data.write-overflow"},
	{"iSCSI.iSCSIResiduals.Write10Residuals", "data.write-underflow"},
	{"iSCSI.iSCSITMF.AbortTaskSimpleAsync", "task.abort-task"},
	{"iSCSI.iSCSITMF.LUNResetSimpleAsync", "task.lun-reset"},
	{"iSCSI.iSCSIcmdsn.iSCSICmdSnTooHigh", "numbering.above"},
	{"iSCSI.iSCSIcmdsn.iSCSICmdSnTooLow", "numbering.below"},
	{"iSCSI.iSCSIdatasn.iSCSIDataSnInvalid", "data.datasn-below"},
}

// LooksTooSoon is what is wrong with iSCSI.iSCSITMF.LUNResetSimpleAsync, with every target.
const LooksTooSoon = "libiscsi 1.19 looks for the answer to the reset before it has sent it"

// Comparison is what both say of one thing that a target does.
type Comparison struct {
	Test    string // of libiscsi
	Verdict Verdict
	Result  iscsitest.Result // of ours
	Output  string           // of libiscsi's test
}

// Agree reports whether both say that the target does it well, or both that it does not, or both that it does not have it.
func (c *Comparison) Agree() bool {
	switch c.Result.Verdict {
	case iscsitest.Pass:
		return c.Verdict == Passed
	case iscsitest.Fail, iscsitest.Warn:
		return c.Verdict == Failed || c.Verdict == Crashed
	case iscsitest.Skip:
		return c.Verdict == Skipped
	}
	return false
}

// Compare runs the tests with a unit that were also ours, and pairs what they say with what a report of ours says of that unit.
func (s Suite) Compare(ctx context.Context, url string, report *iscsitest.Report) (all []Comparison) {
	ran := map[string]Comparison{}
	for _, pair := range shared {
		c, have := ran[pair.test]
		if !have {
			c = Comparison{Test: pair.test}
			c.Verdict, c.Output = s.Run(ctx, pair.test, url, time.Minute)
			ran[pair.test] = c
		}
		for _, r := range report.Results {
			if r.Case == pair.id {
				c.Result = r
				all = append(all, c)
			}
		}
	}
	return all
}

// Table writes comparisons as a section of Markdown. A disagreement that because has nothing to say of has an empty place.
func Table(title string, all []Comparison, because map[string]string) string {
	var b strings.Builder
	agree := 0
	fmt.Fprintf(&b, "\n## %s, beside libiscsi's suite\n\n| test of libiscsi | says | case | says | why they disagree |\n| --- | --- | --- | --- | --- |\n", title)
	for i := range all {
		c := &all[i]
		why := ""
		if c.Agree() {
			agree++
		} else {
			why = because[c.Pair()]
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", c.Test, c.Verdict, c.Result.Case, c.Result.Verdict, why)
	}
	fmt.Fprintf(&b, "\nThey agree on %d of %d.\n", agree, len(all))
	return b.String()
}

// Pair names what is compared.
func (c *Comparison) Pair() string { return c.Test + " " + c.Result.Case }
