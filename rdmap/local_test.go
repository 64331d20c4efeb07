package rdmap_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/rdmap"
)

// locals has local operations written down as "local ID"; that of ID fail
// fails.
func (p *peer) locals(fail uint64) error {
	failure := errors.New("no such window")
	p.local = func(op *rdmap.Op) error {
		p.note(fmt.Sprintf("local %d", op.ID))
		if op.ID == fail {
			return failure
		}
		return nil
	}
	return failure
}

func TestLocalOperationsRetireInOrder(t *testing.T) {
	p := start(t)
	p.locals(0)
	p.post(rdmap.Op{Kind: rdmap.OpLocal, ID: 1})
	p.want("local 1", "done 1")
	p.postMore(rdmap.Op{Kind: rdmap.OpLocal, ID: 2}, true)
	p.postMore(rdmap.Op{Kind: rdmap.OpSend, ID: 3}, true)
	p.postMore(rdmap.Op{Kind: rdmap.OpLocal, ID: 4}, true)
	p.post(rdmap.Op{Kind: rdmap.OpWrite, ID: 5})
	p.want("local 2", "local 4", "done 2", "done 3", "done 4", "done 5")
	p.wantOps(rdmap.OpSend, rdmap.OpWrite)
}

// A local operation behind a Read does not wait for it, unless it is fenced; it
// is reported after it either way.
func TestFenceHoldsALocalOperation(t *testing.T) {
	for _, fence := range []bool{false, true} {
		p := start(t)
		p.locals(0)
		p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 1}, make([]byte, 4)))
		p.post(rdmap.Op{Kind: rdmap.OpLocal, ID: 2, Fence: fence})
		p.post(rdmap.Op{Kind: rdmap.OpSend, ID: 3})
		read := p.wantOps(rdmap.OpReadRequest)[0]
		req, _ := rdmap.ParseReadRequest(ddp.Untagged(read).Payload())
		if !fence {
			p.wantOps(rdmap.OpSend)
		}
		p.raw.Send(tagged(true, rdmap.OpReadResponse, req.SinkSTag, 0, 1, 2, 3, 4))
		if fence {
			p.want("done 1", "local 2", "done 2", "done 3")
			p.wantOps(rdmap.OpSend)
		} else {
			p.want("local 2", "done 1", "done 2", "done 3")
		}
	}
}

// Its error is the operation's own; what came before is sent, what comes after
// is not.
func TestFailedLocalOperationEndsTheStream(t *testing.T) {
	p := start(t)
	failure := p.locals(3)
	p.postMore(rdmap.Op{Kind: rdmap.OpSend, ID: 1}, true)
	p.postMore(rdmap.Op{Kind: rdmap.OpLocal, ID: 2}, true)
	p.postMore(rdmap.Op{Kind: rdmap.OpLocal, ID: 3}, true)
	p.postMore(rdmap.Op{Kind: rdmap.OpLocal, ID: 4}, true)
	p.post(rdmap.Op{Kind: rdmap.OpSend, ID: 5})
	p.wantOps(rdmap.OpSend)
	if term := p.wantTerminate(); term.Layer != ddp.LayerRDMA || term.Type != rdmap.TypeLocalCatastrophic || term.Code != 0 || term.DDP != nil {
		t.Errorf("Terminate %+v", term)
	}
	p.wantFin()
	p.raw.CloseWrite()
	var local *rdmap.LocalError
	if err := p.wantEnd(); !errors.As(err, &local) || !errors.Is(err, failure) {
		t.Errorf("ended with %v", err)
	}
	p.want("local 2", "local 3", "done 1", "done 2", "failed 3", "failed 4", "failed 5")
	if p.errs[3] != failure {
		t.Errorf("the operation that failed reports %v", p.errs[3])
	}
	if !errors.As(p.errs[4], &local) || !errors.As(p.errs[5], &local) {
		t.Errorf("later operations report %v and %v", p.errs[4], p.errs[5])
	}
}

// A local operation behind a Read that is never answered still reports its own
// error.
func TestFailedLocalOperationBehindARead(t *testing.T) {
	p := start(t)
	failure := p.locals(2)
	p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 1}, make([]byte, 4)))
	p.post(rdmap.Op{Kind: rdmap.OpLocal, ID: 2})
	p.raw.CloseWrite()
	p.wantEnd()
	if p.errs[2] != failure {
		t.Errorf("the operation that failed reports %v", p.errs[2])
	}
}

// Close carries out what is queued before it.
func TestCloseWaitsForLocalOperations(t *testing.T) {
	p := start(t)
	p.locals(0)
	p.postMore(rdmap.Op{Kind: rdmap.OpLocal, ID: 1}, true)
	p.s.Close()
	p.raw.CloseWrite()
	if err := p.wantEnd(); err != nil {
		t.Errorf("ended with %v", err)
	}
	p.want("local 1", "done 1")
}

// A local operation may wait for memory that others use. The stream's own use,
// for a Read Response in the same batch, is over before.
func TestLocalOperationFindsNothingPinned(t *testing.T) {
	for _, stalled := range []bool{false, true} {
		p := start(t)
		p.region(7, 1<<12, rdmap.RemoteRead)
		p.local = func(op *rdmap.Op) error {
			p.mu.Lock()
			pins := p.regions[7].pins
			p.mu.Unlock()
			p.note(fmt.Sprintf("local %d, %d pinned", op.ID, pins))
			return nil
		}
		p.postMore(rdmap.Op{Kind: rdmap.OpSend, ID: 1}, true)
		p.postMore(rdmap.Op{Kind: rdmap.OpLocal, ID: 2}, true)
		p.raw.Stall(stalled)
		p.raw.Send(untagged(true, rdmap.OpReadRequest, 1, 1, 0, rdmap.ReadRequest{Size: 1 << 12, SourceSTag: 7}.Append(nil)...))
		p.raw.Stall(false)
		p.wantOps(rdmap.OpSend, rdmap.OpReadResponse)
		p.want("done 1", "local 2, 0 pinned", "done 2")
	}
}
