package daemon

import (
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// A peer that keeps connecting is blocked by itself: its streams end, new ones are
// refused, the log and the status say so, and when the block is taken back it comes
// in again. A peer that does not is not touched.
func TestFloodOfStreamsIsBlocked(t *testing.T) {
	alpha := newHost(t, "")
	beta := newHost(t, "block: {per_second: 1, burst: 20, for: 1h}\n")
	link(t, alpha, beta)
	image := beta.image("disk.img", 1<<20)
	beta.export("disk", image, false)
	c := alpha.attach("disk")
	ok(t, c, cmdRead, 0, 512, nil)
	if err := alpha.ping(); err != nil {
		t.Fatal(err)
	}
	for n := 0; len(beta.status().Blocks) == 0; n++ { // a ping may also fail since the ends of those before are late
		if n > 10_000 {
			t.Fatal("10,000 streams and nobody minds")
		}
		_ = alpha.ping()
	}
	eventually(t, "the streams of the flood and of the session end", func() bool { return len(beta.status().Streams) == 0 })
	if alpha.ping() == nil {
		t.Error("a blocked peer has a stream")
	}
	st := beta.status()
	if len(st.Blocks) != 1 || st.Blocks[0].Peer != "alpha" || st.Blocks[0].By != api.BlockedByDaemon || st.Blocks[0].Packets == 0 || !strings.Contains(st.Blocks[0].Why, "more than 20 streams at once") {
		t.Errorf("blocks %+v", st.Blocks)
	}
	if n := strings.Count(beta.log.String(), `msg="peer is blocked"`); n != 1 {
		t.Errorf("the log has %d lines about the block", n)
	}
	r, err := beta.api.Resources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	blocked := 0
	for _, e := range r.Events {
		if e.Kind == "blocked" && e.Peer == "alpha" {
			blocked += int(e.Count)
		}
	}
	if blocked != 1 {
		t.Errorf("events %+v, want one of the block", r.Events)
	}
	if err := beta.api.Unblock(t.Context(), "alpha"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the peer comes in again", func() bool { return alpha.ping() == nil })
	ok(t, c, cmdRead, 0, 512, nil)
}

// A block that somebody asks for replaces the one before, ends by itself, and goes
// with its peer.
func TestBlocksByHand(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	block := func(seconds float64, why string) api.Block {
		t.Helper()
		b, err := beta.api.Block(t.Context(), api.BlockRequest{Peer: "alpha", Seconds: seconds, Why: why})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if b := block(0, ""); b.Until.Sub(b.Since) != config.DefaultBlock || b.Why != "by hand" {
		t.Errorf("by default: %+v", b)
	}
	b := block(3600, "repair")
	if list, err := beta.api.Blocks(t.Context()); err != nil || len(list) != 1 || list[0].Why != "repair" || !list[0].Until.Equal(b.Until) {
		t.Errorf("blocks %+v, %v", list, err)
	}
	if err := alpha.ping(); err == nil {
		t.Error("a blocked peer has a stream")
	}
	eventually(t, "the log says why the peer is refused", func() bool { return strings.Contains(beta.log.String(), "the peer is blocked until") })
	block(1, "a second")
	eventually(t, "the block ends by itself", func() bool { return alpha.ping() == nil })
	says(t, beta.api.Unblock(t.Context(), "alpha"), api.CodeNotFound, `peer "alpha" is not blocked`)
	for what, req := range map[string]api.BlockRequest{
		"too short": {Peer: "alpha", Seconds: 0.1}, "into the past": {Peer: "alpha", Seconds: -5}, "without end": {Peer: "alpha", Seconds: 1e12},
		"a novel": {Peer: "alpha", Why: strings.Repeat("x", 101)},
	} {
		_, err := beta.api.Block(t.Context(), req)
		says(t, err, api.CodeInvalid)
		if list, err := beta.api.Blocks(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("%s: blocks %+v, %v", what, list, err)
		}
	}
	_, err := beta.api.Block(t.Context(), api.BlockRequest{Peer: "nobody"})
	says(t, err, api.CodeNotFound, `unknown peer "nobody"`)
	block(3600, "")
	if err := beta.api.RemoveExport(t.Context(), "disk", true); err != nil {
		t.Fatal(err)
	}
	if _, err := beta.api.RemovePeer(t.Context(), "alpha", false); err != nil {
		t.Fatal(err)
	}
	if list, err := beta.api.Blocks(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("blocks after the peer has gone: %+v, %v", list, err)
	}
}
