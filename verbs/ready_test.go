package verbs

import (
	"context"
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// In the peer-to-peer model the responder sends first, although the initiator's
// consumer posts nothing: the ready-to-receive message lets it (RFC 6581
// section 9.2). Neither consumer sees that message, but a Send, which a peer may insist
// on.
func TestPeerToPeerResponderMaySendFirst(t *testing.T) {
	for _, rtr := range []struct {
		name   string
		ask    RTR
		server RTR // 0 for what a listener takes by default
	}{
		{"by default", 0, 0},
		{"write", RTRWrite, 0},
		{"read", RTRRead, 0},
		{"read or write", RTRRead | RTRWrite, 0},
		{"send", RTRSend, RTRSend},
		{"by default, of a peer that takes sends alone", 0, RTRSend},
	} {
		t.Run(rtr.name, func(t *testing.T) {
			overEachCarrier(t, Config{}, Config{}, func(t *testing.T, a, b *end) {
				a.cfg.ORD = 1 // the message must not take the only Read for good
				ln := listen(t, b, ListenConfig{Setup: Setup{PeerToPeer: rtr.server}})
				accepted := make(chan error, 1)
				msgs := b.mr(64, LocalWrite)
				go func() {
					cr, err := ln.Accept(context.Background())
					if err == nil {
						b.qp, err = cr.Accept(context.Background(), b.pd, AcceptConfig{QP: b.cfg, Prepare: func(qp *QP) error {
							return qp.PostRecv(RecvWR{ID: 1, SGL: whole(msgs, 64)})
						}})
					}
					accepted <- err
				}()
				dst := a.mr(64, LocalWrite)
				qp, err := a.pd.Dial(testContext(t), DialConfig{
					QP: a.cfg, Prepare: func(qp *QP) error { return qp.PostRecv(RecvWR{ID: 2, SGL: whole(dst, 64)}) },
					Remote: ln.Addr(), Transport: a.tc, Setup: Setup{PeerToPeer: rtr.ask},
				})
				if err != nil {
					t.Fatal(err)
				}
				a.qp = qp
				if err := <-accepted; err != nil {
					t.Fatal(err)
				}
				// Over SCTP an initiator offers none by itself: nothing there waits for it.
				if rtr.server == RTRSend && (rtr.ask != 0 || a.tc.Kind == transport.TCP) {
					if wc := b.wantOK(WCRecv); wc.ID != 1 || wc.Len != 0 {
						t.Errorf("the Send that says ready arrived as %+v", wc)
					}
				}
				copy(msgs.Bytes(), "first")
				b.post(SendWR{Op: OpSend, Flags: Signaled, SGL: whole(msgs, 5)})
				b.wantOK(WCSend)
				if wc := a.wantOK(WCRecv); wc.ID != 2 || string(dst.Bytes()[:5]) != "first" {
					t.Errorf("received %+v, %q", wc, dst.Bytes()[:5])
				}
				src := b.mr(64, RemoteRead)
				copy(src.Bytes(), "read me")
				a.post(SendWR{ID: 3, Op: OpRead, Flags: Signaled, SGL: whole(dst, 7), RemoteSTag: src.STag()})
				if wc := a.wantOK(WCRead); wc.ID != 3 || string(dst.Bytes()[:7]) != "read me" {
					t.Errorf("read %+v, %q", wc, dst.Bytes()[:7])
				}
				if st := a.qp.Stats(); st.SendOps != 1 {
					t.Errorf("%d operations were completed, want the Read alone", st.SendOps)
				}
				a.qp.Close()
				a.wantEnd()
				b.wantEnd()
			})
		})
	}
}

// Of an initiator that offers a Send alone the responder takes it only where its consumer
// has said so, since it costs that a receive. Otherwise both learn why there is no stream
// (RFC 6581 section 9.2), and the next initiator is served.
func TestSendAloneIsNoReadinessUnlessTheConsumerTakesIt(t *testing.T) {
	overEachCarrier(t, Config{}, Config{}, func(t *testing.T, a, b *end) {
		failed := make(chan error, 4)
		ln := listen(t, b, ListenConfig{})
		go func() {
			for {
				cr, err := ln.Accept(context.Background())
				if err != nil {
					close(failed)
					return
				}
				qp, err := cr.Accept(context.Background(), b.pd, AcceptConfig{QP: b.cfg})
				if err == nil {
					<-qp.Done()
					err = qp.Err()
				}
				failed <- err
			}
		}()
		_, err := a.pd.Dial(testContext(t), DialConfig{QP: a.cfg, Remote: ln.Addr(), Transport: a.tc, Setup: Setup{PeerToPeer: RTRSend}})
		var fault *ddp.Error
		if !errors.As(err, &fault) || fault.Layer != ddp.LayerLLP || fault.Code != mpa.CodeRTR {
			t.Errorf("the initiator gets: %v", err)
		}
		var term *rdmap.TerminateError
		if err := <-failed; !errors.As(err, &term) || term.Terminate.Layer != ddp.LayerLLP || term.Terminate.Code != mpa.CodeRTR {
			t.Errorf("the responder gets: %v", err)
		}
		qp, err := a.dial(ln.Addr())
		if err != nil {
			t.Fatal(err)
		}
		qp.Close()
		<-failed
	})
}

// Where nothing says that the initiator is ready, what the acceptor posts waits for
// the initiator's first message, and goes then (RFC 5044 section 7.1.2 rule 4). So it is
// with a peer of revision 1, and with one that declines the peer-to-peer model.
func TestAcceptorWaitsForAnInitiatorWithoutReadiness(t *testing.T) {
	for name, change := range map[string]func(*DialConfig){
		"revision 1":    func(d *DialConfig) { d.Setup.Plain = true },
		"client-server": func(d *DialConfig) { d.Setup.ClientServer = true },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newEnd(t, Config{}), newEnd(t, Config{})
			ln := listen(t, b, ListenConfig{})
			accepted := make(chan error, 1)
			inbox, outbox := b.mr(64, LocalWrite), b.mr(64, 0)
			go func() {
				cr, err := ln.Accept(context.Background())
				if err == nil {
					b.qp, err = cr.Accept(context.Background(), b.pd, AcceptConfig{QP: b.cfg, Prepare: func(qp *QP) error {
						return qp.PostRecv(RecvWR{ID: 1, SGL: whole(inbox, 64)})
					}})
				}
				accepted <- err
			}()
			dial := DialConfig{Remote: ln.Addr(), Transport: a.tc}
			change(&dial)
			dst := a.mr(64, LocalWrite)
			var err error
			dial.QP, dial.Prepare = a.cfg, func(qp *QP) error { return qp.PostRecv(RecvWR{ID: 2, SGL: whole(dst, 64)}) }
			a.qp, err = a.pd.Dial(testContext(t), dial)
			if err := errors.Join(err, <-accepted); err != nil {
				t.Fatal(err)
			}
			b.post(SendWR{Op: OpSend, Flags: Signaled, SGL: whole(outbox, 5)})
			if n := b.cq.Poll(make([]WC, 1)); n != 0 {
				t.Error("the acceptor's Send has ended before the initiator's first message")
			}
			a.post(SendWR{Op: OpSend, SGL: whole(a.mr(8, 0), 8)})
			a.wantOK(WCRecv)
			for range 2 { // in either order
				if wc := b.next(); wc.Err != nil {
					t.Error(wc.Err)
				}
			}
			a.qp.Close()
			a.wantEnd()
			b.wantEnd()
		})
	}
}
