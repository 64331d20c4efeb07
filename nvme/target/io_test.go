package target_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/nvme/target"
)

// TestReadsWhatWasWritten: what is written in each of the ways is what is read, and what is in the file.
func TestReadsWhatWasWritten(t *testing.T) {
	s := serve(t, target.Config{}, target.Subsystem{}, nil)
	_, q := s.queue(1)
	small := bytes.Repeat([]byte("in the capsule. "), 4096/16)
	large := bytes.Repeat([]byte("read by target. "), 1<<20/16)
	e, err := q.Inline(s.ctx, rw(q, nvme.Write, 0, 8), small)
	want(t, "write in the capsule", e, err, nvme.Success)
	e, err = q.Out(s.ctx, rw(q, nvme.Write, 8, 2048), large)
	want(t, "write of a MiB", e, err, nvme.Success)
	b, e, err := q.In(s.ctx, rw(q, nvme.Read, 0, 2048), 1<<20)
	want(t, "read of a MiB", e, err, nvme.Success)
	whole := append(bytes.Clone(small), large...)
	if !bytes.Equal(b, whole[:1<<20]) {
		t.Error("what is read is not what was written")
	}
	if file, err := os.ReadFile(s.file); err != nil || !bytes.Equal(file[:len(whole)], whole) {
		t.Errorf("the file is not what was written: %v", err)
	}
	e, err = q.Out(s.ctx, rw(q, nvme.Compare, 8, 2048), large)
	want(t, "compare", e, err, nvme.Success)
	e, err = q.Out(s.ctx, rw(q, nvme.Compare, 9, 8), small)
	want(t, "compare with others", e, err, nvme.CompareFailure)
	c := rw(q, nvme.WriteZeroes, 0, 4)
	c.SetDWord(12, c.DWord(12)|nvme.WZDeallocate)
	e, err = q.Do(s.ctx, c)
	want(t, "write zeroes", e, err, nvme.Success)
	c = q.New(nvme.DatasetManagement)
	c.SetNSID(1)
	c.SetDWord(10, 1)
	c.SetDWord(11, nvme.DSMDeallocate)
	e, err = q.Out(s.ctx, c, nvme.Range{SLBA: 100, Blocks: 4}.Append(nvme.Range{SLBA: 8, Blocks: 8}.Append(nil)))
	want(t, "deallocate", e, err, nvme.Success)
	clear(whole[:2048])
	clear(whole[8*512 : 16*512])
	clear(whole[100*512 : 104*512])
	b, e, err = q.In(s.ctx, rw(q, nvme.Read, 0, 2048), 1<<20)
	want(t, "read", e, err, nvme.Success)
	if !bytes.Equal(b, whole[:1<<20]) {
		t.Error("what was given up is not zeroes, or more than that is")
	}
	c = q.New(nvme.Flush)
	c.SetNSID(1)
	e, err = q.Do(s.ctx, c)
	want(t, "flush", e, err, nvme.Success)
	c = rw(q, nvme.Write, 0, 8)
	c.SetDWord(12, c.DWord(12)|nvme.RWForceUnitAccess)
	e, err = q.Inline(s.ctx, c, small)
	want(t, "write with FUA", e, err, nvme.Success)
}
