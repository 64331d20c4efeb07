package nbd

import (
	"net"
	"testing"
	"testing/synctest"
)

// A connection whose client has sent its last request does not end while a reply is still being
// sent from a copy, whose slot is free, and then it does.
func TestConnectionEndsAfterItsLastReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		c := newConn(NewServer(Config{}), near)
		c.flushing = true // by a goroutine that waits for the client
		ended := false
		go func() {
			c.drain()
			ended = true
		}()
		synctest.Wait()
		if ended {
			t.Error("the rest of a reply is not sent")
		}
		c.nextBatch(nil) // all of it was sent
		synctest.Wait()
		if !ended {
			t.Fatal("the connection never ends")
		}
	})
}
