package ipsec

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/charon/charontest"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

// listFrom asks such a charon for its SAs.
func listFrom(ctx context.Context, answer []byte, stay bool) ([]charon.SA, error) {
	c, err := charon.NewConn(charontest.Saying(charontest.Confirmed, answer, stay), "test")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.Subscribe(ctx, "list-sa"); err != nil {
		return nil, err
	}
	return charon.ListSAs(ctx, c, "")
}

// FuzzAnswersOfCharon takes charon for a hostile peer: whatever it sends, a list
// comes back or an error that says what is wrong, and no child that covers
// something without a selector that says so.
func FuzzAnswersOfCharon(f *testing.F) {
	p := padtest.Peer("beta", 2)
	for _, body := range [][]byte{nil, saOf(p, "beta-out", "beta-in").Encode(nil), charontest.Nested(3), tree{{"a", []string{"b", "c"}}}.Encode(nil)} {
		f.Add(append(charontest.Packet(7, "list-sa", body), charontest.Packet(1, "", nil)...))
	}
	f.Add(charontest.Packet(1, "", tree{{"success", "no"}, {"errmsg", "no"}}.Encode(nil)))
	f.Add([]byte{0, 0, 0, 1, 7})
	f.Fuzz(func(t *testing.T, answer []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		sas, err := listFrom(ctx, answer, false)
		if errors.Is(err, charon.ErrHangs) {
			t.Fatalf("it hung: %v", err)
		}
		for i := range sas {
			_ = p.Owns(&sas[i])
			for _, c := range sas[i].Children {
				if charon.Covers(c.LocalTS, c.RemoteTS, padtest.FlowTo(p)) && (len(c.LocalTS) == 0 || len(c.RemoteTS) == 0) {
					t.Errorf("a child without selectors covers a flow: %+v", c)
				}
			}
		}
		_, _, _ = p.Carrier("beta-out", padtest.FlowTo(p), sas)
	})
}

// FuzzEventsOfCharon hands over events of any name and content, as if charon had
// sent them.
func FuzzEventsOfCharon(f *testing.F) {
	p := padtest.Peer("beta", 2)
	f.Add("child-updown", tree{{"up", "yes"}, {"beta", saOf(p, "beta-out")[0][1]}}.Encode(nil))
	f.Add("child-rekey", tree{{"beta", tree{{"child-sas", tree{{"beta-out", tree{{"old", tree{}}, {"new", tree{}}}}}}}}}.Encode(nil))
	f.Add("ike-updown", tree{{"beta", tree{{"uniqueid", "1"}}}}.Encode(nil))
	f.Add("log", tree{{"ikesa-name", "beta"}, {"msg", "received DELETE for IKE_SA beta[1"}}.Encode(nil))
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		if len(name) == 0 || len(name) > 255 {
			return
		}
		m, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		m.peers["beta"] = newPeer(m, p)
		c, err := charon.NewConn(charontest.Saying(charontest.Confirmed, append(charontest.Packet(7, name, body), charontest.Packet(1, "", nil)...), false), "test", ike.SaidChildDelete, ike.SaidGivingUp, ike.SaidUnloaded)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.Subscribe(ctx, name); err != nil {
			return
		}
		if _, err := c.Call(ctx, "version", "charon", nil, m.viciEvent); errors.Is(err, charon.ErrHangs) {
			t.Fatalf("it hung: %v", err)
		}
	})
}
