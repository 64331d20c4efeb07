package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestStormOfEventsIsLoggedWithinBoundsAndCounted(t *testing.T) {
	var out bytes.Buffer
	h := newEventLog(slog.NewTextHandler(&out, nil))
	now := time.Unix(1000, 0)
	h.seen.now = func() time.Time { return now }
	log := slog.New(h)
	const storm = 500
	for i := range storm {
		log.Info("IPsec", "event", "child-down", "peer", "beta", "id", i)
	}
	// Another kind, another peer, and what is no event are not affected.
	log.Info("IPsec", "event", "child-up", "peer", "beta")
	log.Info("IPsec", "event", "child-down", "peer", "gamma")
	for range storm {
		log.Info("something else", "event", "child-down", "peer", "beta")
	}
	count := func(s string) int { return strings.Count(out.String(), s) }
	if n := count("event=child-down peer=beta id="); n != eventsLogged {
		t.Errorf("%d lines of the storm, want %d", n, eventsLogged)
	}
	if count("event=child-up") != 1 || count("peer=gamma") != 1 || count("something else") != storm {
		t.Errorf("other lines are missing:\n%s", out.String())
	}
	h.report(log)
	if count("left_out") != 0 {
		t.Error("the window is not over")
	}
	now = now.Add(eventWindow)
	h.report(log)
	if want := fmt.Sprintf("left_out=%d", storm-eventsLogged); count(want) != 1 || count("event=child-down peer=beta left_out") != 1 {
		t.Errorf("no line with %s:\n%s", want, out.String())
	}
	h.report(log)
	if count("left_out") != 1 {
		t.Error("it is reported twice")
	}
	log.With("a", 1).Info("IPsec", "event", "child-down", "peer", "beta", "id", "next")
	if count("id=next") != 1 {
		t.Error("the next window is closed")
	}
}
