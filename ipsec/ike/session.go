package ike

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// DefaultSocket is where Debian's strongSwan has its control socket.
const DefaultSocket = "/var/run/charon.vici"

// SocketPath is the path of a configured socket, with or without "unix://"; the default
// one where none is configured.
func SocketPath(configured string) string {
	return cmp.Or(strings.TrimPrefix(configured, "unix://"), DefaultSocket)
}

const (
	// CallTimeout bounds a VICI call that charon answers from memory. A call
	// without a deadline may wait for ever when charon hangs.
	CallTimeout = 5 * time.Second
	// SignPoll is how often charon is asked for a sign of life.
	SignPoll = 5 * time.Second
)

// Watched are the events that make the list of SAs worth reading again.
// The log shows who ended them.
var Watched = []string{"ike-updown", "ike-rekey", "child-updown", "child-rekey", "log"}

// How charon's log lines about the ends of SAs begin.
const (
	SaidChildDelete = "received DELETE for "
	SaidGivingUp    = "giving up after "

	// Charon's words about a delete of a child that it does not have: IKEv2's begin the line
	// itself, IKEv1's are the line that follows.
	SaidUnknownDelete = SaidChildDelete + "unknown "
	SaidIgnoredDelete = "CHILD_SA not found, ignored"

	// SaidUnloaded begins the line about a key that is unloaded.
	SaidUnloaded = "unloaded "
)

// listPatience is how many times longer than such a call a list of SAs may take: charon
// lists an IKE SA when no thread of its is busy with it. One that asks for the status of
// the peer's certificate is for 10 s, for each URI where nobody answers.
const listPatience = 12

// Session is one life of the connection to charon: one socket for events, one for
// short questions, one for lists of SAs. Commands that take long have a socket of their own
// each.
//
//	connecting --identify, subscribe--> up --socket closed, no answer--> down
//	    ^                                                                 |
//	    +------------------------- backoff -------------------------------+
type Session struct {
	Status  Status        // as it was when the connection was made
	timeout time.Duration // of calls that charon answers at once
	events  *charon.Conn

	query, lists line

	certsMu sync.Mutex          // guards the fields below it; taken before line.asking
	certs   map[string]usedCert // by peer
}

// line is a connection for one question at a time.
type line struct {
	conn   *charon.Conn
	asking sync.Mutex // held during a question
}

// Connect begins a session: plane is the configured one, timeout that of calls which
// charon answers at once. It fails as charon.Dial does, and with charon.ErrTooOld.
func Connect(ctx context.Context, socket string, plane esp.Plane, timeout time.Duration) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l := &Session{timeout: timeout}
	var err error
	if l.query.conn, err = charon.Dial(ctx, socket); err != nil {
		return nil, err
	}
	if l.Status, err = identify(ctx, l.query.conn); err == nil {
		err = l.query.conn.Subscribe(ctx, "list-cert")
	}
	if err == nil {
		l.lists.conn, err = charon.Dial(ctx, socket)
	}
	if err == nil {
		err = l.lists.conn.Subscribe(ctx, "list-sa")
	}
	if err == nil {
		l.events, err = charon.Dial(ctx, socket, SaidChildDelete, SaidIgnoredDelete, SaidGivingUp, SaidUnloaded)
	}
	if err == nil {
		err = l.events.Subscribe(ctx, Watched...)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	l.Status.choose(plane)
	return l, nil
}

// Close ends the session.
func (l *Session) Close() {
	for _, c := range []*charon.Conn{l.query.conn, l.lists.conn, l.events} {
		if c != nil {
			c.Close()
		}
	}
}

// ask makes a call that charon answers at once. A caller that goes away does not
// cut it short, since the connection is shared.
func (l *Session) ask(ctx context.Context, cmd, about string, in *vici.Message) (m *vici.Message, err error) {
	err = l.inTurn(ctx, &l.query, l.timeout, func(ctx context.Context, c *charon.Conn) error {
		m, err = c.Call(ctx, cmd, about, in, nil)
		return err
	})
	return m, err
}

// inTurn runs a question when the ones before it on its line are answered. No answer
// within d, or another failure of the connection, ends the session.
func (l *Session) inTurn(ctx context.Context, on *line, d time.Duration, question func(context.Context, *charon.Conn) error) error {
	on.asking.Lock()
	defer on.asking.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d)
	defer cancel()
	err := question(ctx, on.conn)
	if err != nil && !charon.Refused(err, "") {
		l.Close()
	}
	return err
}

// List reads the SAs of a connection, or all of them. It fails as charon.ListSAs does.
func (l *Session) List(ctx context.Context, conn string) (sas []charon.SA, err error) {
	err = l.inTurn(ctx, &l.lists, listPatience*l.timeout, func(ctx context.Context, c *charon.Conn) error {
		sas, err = charon.ListSAs(ctx, c, conn)
		return err
	})
	return sas, err
}

// control makes a call that takes up to d, and returns what charon logged of it.
func (l *Session) control(ctx context.Context, d time.Duration, cmd, about string, in *vici.Message) (answer *vici.Message, log []string, err error) {
	// charon gives up by itself at d and says why; the margin is for that answer.
	ctx, cancel := context.WithTimeout(ctx, d+2*time.Second)
	defer cancel()
	c, err := charon.Dial(ctx, l.Status.Socket)
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

// Follow hands over events until the session is over, and calls alive every SignPoll.
// It fails with why the session is over, ctx's error, or alive's.
func (l *Session) Follow(ctx context.Context, event func(vici.Event), alive func() error) error {
	tick := time.NewTicker(SignPoll)
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

// Ping asks charon for a sign of life. It fails as charon.Conn.Call does.
func (l *Session) Ping(ctx context.Context) error {
	_, err := l.ask(ctx, "version", "charon", nil)
	return err
}
