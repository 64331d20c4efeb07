package rdmap_test

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// slowLLP takes a second and a half for each batch.
type slowLLP struct{ *iwarptest.LLP }

func (slowLLP) TryFlush() (bool, error) { return false, nil }

func (l slowLLP) Flush() error {
	<-time.After(1500 * time.Millisecond)
	return l.LLP.Flush()
}

// A graceful close of a slow stream that gets on is not cut off: neither with
// many messages in the queue nor in the middle of a long one.
func TestCloseSendsWhatTakesLong(t *testing.T) {
	for name, sends := range map[string][]int{
		"several messages":   {30000, 30000, 30000, 30000},
		"one long message":   {150000},
		"short and long one": {10, 100000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				raw, l := iwarptest.Pair(iwarptest.Options{})
				up := newUpper()
				s := rdmap.New(rdmap.Config{LLP: slowLLP{l}, Upper: up, MaxSend: 16})
				go s.Run()
				p := &peer{upper: up, t: t, s: s, raw: raw}
				total := 0
				for i, n := range sends {
					p.postMore(sgl(rdmap.Op{Kind: rdmap.OpSend, ID: uint64(i)}, make([]byte, n)), i < len(sends)-1)
					total += n
				}
				s.Close()
				got := 0
				for {
					segs, err := raw.Recv()
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						t.Fatalf("after %d of %d bytes: %v", got, total, err)
					}
					for _, seg := range segs {
						got += len(seg) - 18
					}
				}
				raw.CloseWrite()
				<-up.over
				if got != total || up.err != nil {
					t.Errorf("%d of %d bytes arrived, the stream ended with %v", got, total, up.err)
				}
			})
		})
	}
}

// Answers to the peer are no progress of the close: a peer that goes on asking
// is cut off.
func TestCloseIsNotHeldUpByThePeersReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		raw, l := iwarptest.Pair(iwarptest.Options{})
		up := newUpper()
		s := rdmap.New(rdmap.Config{LLP: slowLLP{l}, Upper: up, MaxSend: 16, IRD: 4})
		p := &peer{upper: up, t: t, s: s, raw: raw}
		p.region(7, 10000, rdmap.RemoteRead)
		ask := func(msn uint32) {
			req := rdmap.ReadRequest{SinkSTag: 1, Size: 10000, SourceSTag: 7}
			raw.Send(untagged(true, rdmap.OpReadRequest, rdmap.QNReadRequest, msn, 0, req.Append(nil)...))
		}
		ask(1)
		ask(2)
		go s.Run()
		synctest.Wait()
		begin := time.Now()
		s.Close()
		go func() {
			for msn := uint32(3); ; msn++ {
				if _, err := raw.Recv(); err != nil {
					return
				}
				ask(msn)
			}
		}()
		<-up.over
		if d := time.Since(begin); d > 4*time.Second {
			t.Errorf("the close took %v", d)
		}
	})
}
