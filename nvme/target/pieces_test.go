package target_test

import (
	"testing"

	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/nvme/nvmetest"
	"github.com/ironwarp/ironwarp/nvme/target"
)

// TestLongCommandStops: a command of many pieces ends with the one that is at the storage when its namespace is taken away, or its host is
// preempted: whoever takes the namespace away or fences the host waits for that piece alone.
func TestLongCommandStops(t *testing.T) {
	for what, x := range map[string]struct {
		stop func(s *served, other *nvmetest.Queue)
		st   nvme.Status
	}{
		"the namespace is taken away": {func(s *served, _ *nvmetest.Queue) { s.server.Detach(subsystemNQN, 1) }, nvme.AbortedByRequest},
		"the host is preempted": {func(s *served, other *nvmetest.Queue) {
			e, err := reserve(s, other, nvme.ReservationAcquire, nvme.Reservation{Action: nvme.ActionPreempt, Type: nvme.WriteExclusive}, 0xb, 0xa)
			want(t, "preempt", e, err, nvme.Success)
		}, nvme.ReservationConflict},
	} {
		t.Run(what, func(t *testing.T) {
			held := newHeld()
			s := serve(t, target.Config{}, target.Subsystem{}, held.on)
			_, old := s.queue(1)
			_, other := s.queue(2)
			for n, q := range map[uint64]*nvmetest.Queue{0xa: old, 0xb: other} {
				e, err := reserve(s, q, nvme.ReservationRegister, nvme.Reservation{}, 0, n)
				want(t, "register", e, err, nvme.Success)
			}
			e, err := reserve(s, old, nvme.ReservationAcquire, nvme.Reservation{Type: nvme.WriteExclusive}, 0xa, 0)
			want(t, "acquire", e, err, nvme.Success)
			held.hold()
			c := old.New(nvme.DatasetManagement)
			c.SetNSID(1)
			c.SetDWord(10, 15)
			c.SetDWord(11, nvme.DSMDeallocate)
			var ranges []byte
			for i := range uint64(16) {
				ranges = nvme.Range{SLBA: i * 8, Blocks: 8}.Append(ranges)
			}
			c = with(c, nvme.SGL{Type: nvme.DataBlockOffset, Length: uint32(len(ranges))})
			if err := old.Send(append(c, ranges...)); err != nil {
				t.Fatal(err)
			}
			<-held.came
			x.stop(s, other)
			held.release()
			e, err = old.Wait(s.ctx, c.ID())
			want(t, "deallocate", e, err, x.st)
			held.mu.Lock()
			defer held.mu.Unlock()
			if held.all != 1 {
				t.Errorf("%d pieces have come to the storage, want 1", held.all)
			}
		})
	}
}
