package directory

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/repeats"
	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/mad"
	election "github.com/ironwarp/ironwarp/fabric/manager"
)

// A host that varies what it asks for, without end, takes few lines of the log.
func TestWhatAHostVariesTakesFewLines(t *testing.T) {
	var log bytes.Buffer
	d := &Directory{cfg: Config{Log: slog.New(repeats.New(slog.NewTextHandler(&log, nil)))}}
	for i := range 1000 {
		d.agentEvent(agent.Event{Kind: agent.NotManager, From: agent.Requester{Name: "gamma"}, Method: mad.MethodSet, Attribute: mad.Attribute(i)})
		d.electionEvent(election.Event{Kind: election.MKeyTrap, Peer: "gamma", Alarm: true, Text: strings.Repeat("x", i)})
	}
	if lines := strings.Count(log.String(), "\n"); lines != 20 { // the 1st, 2nd, 5th, ... 1000th of each
		t.Errorf("%d lines:\n%.2000s", lines, log.String())
	}
	for _, words := range []string{"peer=gamma", "Set of attribute 0x0000 of class 0x01 by gamma, which is no manager"} {
		if !strings.Contains(log.String(), words) {
			t.Errorf("%q is not in the log", words)
		}
	}
	log.Reset()
	d.agentEvent(agent.Event{Kind: agent.LeaseEnded})
	if !strings.Contains(log.String(), "level=WARN msg=\"fabric: the lease of the M_Key has ended: no manager") {
		t.Error(log.String())
	}
}
