package target

import (
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/nvme"
)

// TestEndedControllerIsNoAnswer: a controller that is ended between its number and its admin queue, as when its subsystem is removed
// then, is not what a host gets for its Connect: no command of it would be carried out.
func TestEndedControllerIsNoAnswer(t *testing.T) {
	s := NewServer(Config{})
	c := &conn{srv: s}
	x := newController(s, c, nvme.ConnectData{SubsystemNQN: nvme.DiscoveryNQN})
	s.mu.Lock()
	r := s.enterLocked(x)
	s.mu.Unlock()
	if r != nil {
		t.Fatal(r)
	}
	x.end(errEnded)
	got, err := s.join(x, c, nvme.ConnectCommand{})
	if errors.As(err, &r); got != nil || r == nil || r.status != nvme.ConnectBusy {
		t.Errorf("the answer is controller %v, %v", got, err)
	}
	if len(s.controllers) != 0 {
		t.Errorf("left: %v", s.controllers)
	}
}
