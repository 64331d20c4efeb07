package ipsec

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// watched are the events that make the list of SAs worth reading again.
// The log tells who ended them.
var watched = []string{"ike-updown", "ike-rekey", "child-updown", "child-rekey", "log"}

// link is one life of the connection to charon: one socket for events, one for
// short questions. Commands that take long have a socket of their own each.
//
//	connecting --identify, subscribe--> up --socket closed, no answer--> down
//	    ^                                                                 |
//	    +------------------------- backoff -------------------------------+
type link struct {
	cfg    Config
	status DaemonStatus
	events *charon.Conn

	mu    sync.Mutex // serialises questions
	query *charon.Conn

	certs struct {
		sync.Mutex
		of map[string]usedCert // by peer
	}
}

// connect opens a link.
func connect(ctx context.Context, cfg Config) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.CallTimeout)
	defer cancel()
	l := &link{cfg: cfg}
	var err error
	if l.query, err = charon.Dial(ctx, cfg.Socket); err != nil {
		return nil, err
	}
	if l.status, err = identify(ctx, l.query); err != nil {
		l.query.Close()
		return nil, err
	}
	if err = l.query.Subscribe(ctx, "list-sa", "list-cert"); err != nil {
		l.query.Close()
		return nil, err
	}
	if l.events, err = charon.Dial(ctx, cfg.Socket, saidChildDelete, saidGivingUp, saidUnloaded); err != nil {
		l.query.Close()
		return nil, err
	}
	if err = l.events.Subscribe(ctx, watched...); err != nil {
		l.close()
		return nil, err
	}
	l.status.choose(cfg.DataPlane)
	return l, nil
}

func (l *link) close() {
	l.query.Close()
	if l.events != nil {
		l.events.Close()
	}
}

// ask makes a call that charon answers at once. A caller that goes away does not
// cut it short, since the connection is shared; a failure of the connection ends
// the link.
func (l *link) ask(ctx context.Context, cmd, about string, in *vici.Message) (*vici.Message, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.CallTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	m, err := l.query.Call(ctx, cmd, about, in, nil)
	l.judge(err)
	return m, err
}

func (l *link) judge(err error) {
	var refused *charon.CommandError
	if err != nil && !errors.As(err, &refused) {
		l.close()
	}
}

// list reads the SAs of a connection, or all of them.
func (l *link) list(ctx context.Context, conn string) ([]charon.SA, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.CallTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	sas, err := charon.ListSAs(ctx, l.query, conn)
	l.judge(err)
	return sas, err
}

// control makes a call that takes up to d, and returns what charon logged of it.
func (l *link) control(ctx context.Context, d time.Duration, cmd, about string, in *vici.Message) (answer *vici.Message, log []string, err error) {
	// charon gives up by itself at d and says why; the margin is for that answer.
	ctx, cancel := context.WithTimeout(ctx, d+2*time.Second)
	defer cancel()
	c, err := charon.Dial(ctx, l.cfg.Socket)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	if err := c.Subscribe(ctx, "control-log"); err != nil {
		return nil, nil, err
	}
	answer, err = c.Call(ctx, cmd, about, in, func(ev vici.Event) {
		if text := charon.Str(ev.Message, "msg"); ev.Name == "control-log" && text != "" && len(log) < maxControlLog {
			log = append(log, text)
		}
	})
	return answer, log, err
}

// maxControlLog bounds what is kept of charon's words about one command.
const maxControlLog = 200

// follow hands over events until the link is down, and looks for a sign of life
// where there are none.
func (l *link) follow(ctx context.Context, event func(vici.Event), alive func() error) error {
	tick := time.NewTicker(versionPoll)
	defer tick.Stop()
	for {
		select {
		case ev, ok := <-l.events.Events:
			if !ok {
				return l.events.Ended()
			}
			event(ev)
		case <-tick.C:
			if err := alive(); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// backoff doubles from a least to a most, and takes a random half off, so that
// two hosts do not go on colliding.
type backoff struct {
	min, max time.Duration
	n        int
}

func (b *backoff) next() time.Duration {
	d := min(b.min<<min(b.n, 20), b.max)
	b.n++
	return d - rand.N(d/2)
}

func (b *backoff) reset() { b.n = 0 }
