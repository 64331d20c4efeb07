// Package wakes lets a test wait until whoever waits for a socket would have been woken.
package wakes

import (
	"net"
	"testing"
)

// New returns a function that returns once goroutines have run which had waited for what came on sockets of this process before
// the call: others, which waited for a byte that it has sent behind that, have, several times.
func New(t *testing.T) (pass func()) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for c := []byte{0}; ; {
			if _, err := b.Read(c); err != nil {
				return
			}
			if _, err := b.Write(c); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		a.Close()
		<-ended
		b.Close()
	})
	return func() {
		t.Helper()
		for c := []byte{0}; c[0] < 5; c[0]++ {
			if _, err := a.Write(c); err != nil {
				t.Fatal(err)
			}
			if _, err := a.Read(c); err != nil {
				t.Fatal(err)
			}
		}
	}
}
