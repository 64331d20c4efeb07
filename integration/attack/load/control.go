package load

import (
	"net"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// controlAttack is a local one: connections to the control socket that ask half a
// question.
var controlAttack = Attack{Name: "control socket", Carrier: transport.TCP, run: func(a *attacker) {
	var ring [held]net.Conn
	defer func() {
		for _, c := range ring {
			if c != nil {
				c.Close()
			}
		}
	}()
	for i := 0; a.did(0); i = (i + 1) % held {
		if ring[i] != nil {
			ring[i].Close()
		}
		var err error
		d := net.Dialer{Timeout: attackTime}
		if ring[i], err = d.DialContext(a.ctx, "unix", a.Control); err != nil {
			ring[i] = nil
			a.rest(time.Millisecond)
			continue
		}
		_, _ = ring[i].Write([]byte("GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Half: "))
		a.did(1)
	}
}}
