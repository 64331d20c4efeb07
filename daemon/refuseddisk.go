package daemon

import (
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/rnbd"
)

// refusedDisks are the reasons for which a peer that is reached, and offers an export to
// this host, does not let it be opened, with what to do.
var refusedDisks = []struct {
	err  error
	code string
	fix  string // of the disk's name
}{
	{rnbd.ErrNotReady, api.CodeUnavailable, "see to the export there; %s is opened as soon as it is ready"},
	{rnbd.ErrInUse, api.CodeInUse, "detach it where it is attached, or have it exported with --writers shared if all writers know of each other, as those of a cluster's file system do"},
	{rnbd.ErrOtherDisk, api.CodeInvalid, "if it is meant: `ironwarp detach --force %[1]s`, then `ironwarp attach %[1]s`"},
	{rnbd.ErrDamaged, api.CodeUnavailable, "its administrator sees why with `ironwarp status` there"},
	{rnbd.ErrPlaceTaken, api.CodeInUse, "unmount what is on it, `ironwarp detach --force %[1]s`, `ironwarp attach %[1]s`, and check the file system before it is mounted"},
	{rnbd.ErrWritesLost, api.CodeUnavailable, "unmount what is on it, `ironwarp detach --force %[1]s`, `ironwarp attach %[1]s`, and check the file system before it is mounted"},
}

func isRefusedDisk(err error) bool { return refusedDisk(caller{}, disk{}, err) != nil }

// refusedDisk says why a disk is not opened, nil for another error. Who else has it is
// told to root.
func refusedDisk(who caller, k disk, err error) *api.Error {
	for _, r := range refusedDisks {
		if !errors.Is(err, r.err) {
			continue
		}
		e := &api.Error{Code: r.code, Message: err.Error(), Fix: r.fix}
		var o *rnbd.OpenError
		if !who.all && errors.As(err, &o) {
			e.Message = (&rnbd.OpenError{Export: o.Export, Detail: "not told", Err: o.Err}).Error()
		}
		if r.err != rnbd.ErrInUse && r.err != rnbd.ErrDamaged {
			e.Fix = fmt.Sprintf(r.fix, k)
		}
		return e
	}
	return nil
}
