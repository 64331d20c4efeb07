package main

import (
	"fmt"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// pathTable prints the paths of sessions.
func (w *ironwarp) pathTable(sessions []api.Session) {
	if len(sessions) == 0 {
		return
	}
	w.printf("\n")
	t := w.sheet("session", "path", "address", "transport", "state", ">age", ">in flight", ">latency", ">failovers", "?>reconnects", "?>failed")
	var problems []*api.Error
	for _, s := range sessions {
		for _, p := range s.Paths {
			state := p.State
			switch {
			case p.Avoided:
				state = "avoided"
			case p.Paused:
				state = api.PeerPaused
			}
			t.row(s.Peer, p.Name, p.Address, orDash(p.Transport), w.stateText(state), ageText(p.AgeSeconds), p.InFlight, latencyText(p.LatencySeconds), p.Failovers, p.Reconnects, p.Failures)
			if p.Problem != nil {
				problems = append(problems, &api.Error{Message: fmt.Sprintf("path %s to %s: %s", p.Name, s.Peer, p.Problem.Message), Fix: p.Problem.Fix})
			}
		}
	}
	t.print()
	for _, e := range problems {
		w.problem(e)
	}
}

func latencyText(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f us", seconds*1e6)
}
