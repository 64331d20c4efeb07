// Package nsdo runs a function in another network namespace.
package nsdo

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do runs f on an operating system thread that is in the network namespace bound to
// path (for example /run/netns/alpha). An empty path is the caller's own namespace.
// Sockets that f opens belong to that namespace for as long as they live; goroutines
// that f starts do not run in it. It fails with f's error, and with the kernel's where
// the namespace can't be entered: EPERM without root's rights. Where f ends its goroutine,
// as a test's FailNow does, the caller's ends too.
func Do(path string, f func() error) error {
	if path == "" {
		return f()
	}
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	result := make(chan error, 1)
	go func() {
		defer close(result)
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("open own network namespace: %w", err)
			return
		}
		defer own.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("enter network namespace %s: %w", path, err)
			return
		}
		err = f()
		// A thread that cannot go back stays locked, so that the runtime ends it
		// with this goroutine instead of reusing it.
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return of(result)
}

// of is the result of f, which there is none of if it has ended its goroutine.
func of(result <-chan error) error {
	err, ok := <-result
	if !ok {
		runtime.Goexit()
	}
	return err
}

// Fresh runs f in a new, empty network namespace that vanishes afterwards. It fails
// with f's error, and with the kernel's where none can be made: EPERM without root's
// rights. It ends the caller's goroutine as Do does.
func Fresh(f func() error) error {
	result := make(chan error, 1)
	go func() {
		defer close(result)
		// Never unlocked: the thread dies with its namespace.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		result <- f()
	}()
	return of(result)
}
