package sctp

import (
	"testing"

	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// RFC 9260 section 5.2.4 B: the peer never answers our INIT but sends its own;
// its COOKIE ECHO establishes the association that we are dialling.
func TestPeersInitServesOurDial(t *testing.T) {
	in := assoctest.NewInbox()
	e := listen(t, "127.0.0.1", Config{}) // which accepts nobody
	r := newRawPeer(t, e)
	r.dst = 8888
	dialled := make(chan *Assoc)
	go func() {
		a, err := e.Dial(patient(t), r.addr(), DialConfig{LocalPort: 8888, RemotePort: 7777, Receiver: to(in)})
		if err != nil {
			t.Error(err)
		}
		dialled <- a
	}()
	c, p := r.want(typeInit)
	ours, err := parseInit(c)
	if err != nil || p.tag() != 0 {
		t.Fatalf("%+v, tag %x, %v", ours, p.tag(), err)
	}
	r.send(0, r.init())
	c, p = r.want(typeInitAck)
	ack, err := parseInit(c)
	if err != nil || p.tag() != r.tag {
		t.Fatalf("tag %x, %v", p.tag(), err)
	}
	if ack.tag != ours.tag || ack.tsn != ours.tsn { // section 5.2.1: unchanged
		t.Errorf("the INIT ACK has tag %x and TSN %d, the INIT had %x and %d", ack.tag, ack.tsn, ours.tag, ours.tsn)
	}
	params, err := parseParams(ack.params)
	if err != nil {
		t.Fatal(err)
	}
	r.peerTag = ack.tag
	r.send(r.peerTag, appendChunk(nil, typeCookieEcho, 0, params.cookie), r.data(3, "with the cookie"))
	r.want(typeCookieAck)
	a := <-dialled
	in.WaitFor(t, 1)
	if out, in := a.Streams(); a.State() != "ESTABLISHED" || out != 10 || in != 10 {
		t.Errorf("%s, %d and %d streams", a.State(), out, in)
	}
	if s := e.Stats(); s.Assocs != 1 {
		t.Errorf("%+v", s)
	}
}
