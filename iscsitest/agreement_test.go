package iscsitest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iscsi/libiscsitest"
	"github.com/ironwarp/ironwarp/iscsitest"
)

// TestAgreement: on our target and tgt's, libiscsi's suite and this one say the same of what both look at, or it is said why
// not.
func TestAgreement(t *testing.T) {
	for _, of := range []struct {
		title   string
		serve   func(*testing.T) iscsitest.Target
		because map[string]string
	}{
		{"IronWarp", func(t *testing.T) iscsitest.Target { return serve(t, nil) }, map[string]string{
			"SCSI.GetLBAStatus.UnmapSingle scsi.lba-status-unmapped": "libiscsi expects an answer that begins at another block than it has asked for",
			"iSCSI.iSCSITMF.LUNResetSimpleAsync task.lun-reset":      libiscsitest.LooksTooSoon,
		}},
		{"tgt 1.0.85", serveTGT, map[string]string{
			"iSCSI.iSCSITMF.AbortTaskSimpleAsync task.abort-task": "libiscsi writes down that the task was not found, and passes the target",
			"iSCSI.iSCSITMF.LUNResetSimpleAsync task.lun-reset":   libiscsitest.LooksTooSoon,
			"iSCSI.iSCSIcmdsn.iSCSICmdSnTooLow numbering.below":   "tgt ends the connection; libiscsi logs in again, and takes that for silence",
		}},
	} {
		t.Run(of.title, func(t *testing.T) {
			suite, err := libiscsitest.Find()
			if err != nil {
				t.Skipf("needs iscsi-test-cu: %v", err)
			}
			target := of.serve(t)
			report, err := iscsitest.Run(t.Context(), target, iscsitest.Options{Allow: iscsitest.Data, Timeout: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			all := suite.Compare(t.Context(), fmt.Sprintf("iscsi://%s/%s/%d", target.Address, target.Name, target.LUN), report)
			for i := range all {
				c := &all[i]
				if !c.Agree() && of.because[c.Pair()] == "" {
					t.Errorf("%s says %s: %s\n%s", c.Test, c.Verdict, c.Result.Line(), c.Output)
				} else if c.Agree() && of.because[c.Pair()] != "" {
					t.Errorf("%s and %s agree, and are noted not to", c.Test, c.Result.Case)
				}
			}
			note(t, "%s", libiscsitest.Table(of.title, all, of.because))
		})
	}
}
