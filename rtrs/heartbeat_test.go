package rtrs

import "testing"

func TestHeartbeatTicks(t *testing.T) {
	const max = 3
	type step struct {
		rx, paused bool
		send, dead bool
	}
	for name, steps := range map[string][]step{
		"a busy connection needs none": {{rx: true}, {rx: true}, {rx: true}, {rx: true}, {rx: true}},
		"one at a time, then dead":     {{send: true}, {}, {}, {dead: true}},
		"an answer resets the count":   {{send: true}, {}, {}, {rx: true}, {send: true}, {}, {}, {dead: true}},
		"pauses do not count":          {{send: true}, {}, {paused: true}, {paused: true}, {paused: true}, {}, {dead: true}},
		"none is sent while paused":    {{paused: true}, {paused: true}, {send: true}},
	} {
		var h heartbeat
		for i, s := range steps {
			if s.rx {
				h.seen()
			}
			if send, dead := h.tick(s.paused, max); send != s.send || dead != s.dead {
				t.Errorf("%s: tick %d: send %v, dead %v", name, i, send, dead)
			}
		}
	}
}
