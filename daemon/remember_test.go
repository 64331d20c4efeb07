package daemon

import (
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest"
)

// A disk is written down before it is used, and not once more when it is there.
func TestADiskIsWrittenDownOnce(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	here, there := iwarptest.WatchDir(t, alpha.d.config().StateDir), iwarptest.WatchDir(t, beta.d.config().StateDir)
	alpha.attach("disk")
	if a, b := here(), there(); a != 1 || b != 1 {
		t.Errorf("to attach a disk the state was written %d times, and %d times by who exports it; want 1 and 1", a, b)
	}
}
