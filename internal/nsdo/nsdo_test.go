package nsdo_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/ironwarp/ironwarp/internal/nsdo"
)

// A function that ends its goroutine, as a test's FailNow does, leaves nobody who waits for it.
func TestGoroutineThatEnds(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("another network namespace needs root")
	}
	leave := func() error { runtime.Goexit(); return nil }
	for name, do := range map[string]func() error{
		"Do":    func() error { return nsdo.Do("/proc/self/ns/net", leave) },
		"Fresh": func() error { return nsdo.Fresh(leave) },
	} {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			t.Errorf("%s returns %v", name, do())
		}()
		<-ended
	}
}
