package invite

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Result is what an exchange has come to.
type Result struct {
	Partner Partner
	Outcome Outcome
}

// Errors of an exchange that has ended with nothing of the other host kept.
var (
	ErrDeclined = errors.New("not confirmed: the hosts are no peers")
	ErrLost     = errors.New("the other host is gone, or did not answer in time: the hosts are no peers")
)

// message is what the receiver of an exchange has got.
type message struct {
	kind kind
	body []byte
	err  error
}

// settle introduces the hosts, has both people confirm the code, and writes the peers. It fails where
// this host keeps nothing of the other; KeptUnsure is no failure.
func (s Side) settle(ctx context.Context, c *conn, isInvited func(Partner) error) (Result, error) {
	p, err := c.introduce(s.Own)
	if err == nil {
		err = errors.Join(isInvited(p), s.Check(p))
		if err != nil {
			// The other learns it at its own risk: nothing is kept at either.
			_ = c.send(kindAbort, []byte(reasonOf(err)))
		}
	}
	if err == nil {
		err = c.agreeToAsk()
	}
	if err != nil {
		return Result{Partner: p}, lostIfGone(err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_ = c.SetDeadline(time.Time{}) // the context has one
	received := make(chan message)
	go func() {
		defer close(received)
		for {
			k, body, err := c.receive()
			select {
			case received <- message{k, body, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	answered := make(chan error, 1)
	asked, stopAsking := context.WithCancel(ctx)
	go func() {
		yes, err := s.Ask(asked, p, formatCode(c.keys.code))
		if err == nil && !yes {
			err = ErrDeclined
		}
		answered <- err
	}()
	r, err := s.run(ctx, c, p, received, answered)
	stopAsking()
	cancel()
	c.Close()
	for range received { // until the receiver has ended
	}
	return r, err
}

// agreeToAsk has neither people asked before both hosts are ready to become peers. It fails as the connection
// does, and with the other's reason.
func (c *conn) agreeToAsk() error {
	if err := c.send(kindReady, nil); err != nil {
		return err
	}
	k, body, err := c.receive()
	switch {
	case err != nil:
		return err
	case k == kindAbort:
		return abortOf(body)
	case k != kindReady:
		return errMalformed
	}
	return nil
}

func (s Side) patience() time.Duration {
	if s.patient > 0 {
		return s.patient
	}
	return confirmTime
}

// run feeds the state machine.
func (s Side) run(ctx context.Context, c *conn, p Partner, received <-chan message, answered <-chan error) (Result, error) {
	m := &settlement{role: c.role}
	var why error // of the end
	events := map[kind]event{kindConfirm: confirm, kindWritten: written, kindDone: done, kindBye: bye, kindAbort: abort}
	var patience <-chan time.Time
	for m.state != ended {
		var e event
		select {
		case err := <-answered:
			answered = nil
			if e = agreed; err != nil {
				e, why = declined, err
			}
		case got := <-received:
			known := false
			if e, known = events[got.kind]; got.err != nil || !known {
				e = lost
			}
			if e == abort {
				why = abortOf(got.body)
			}
			if errors.Is(got.err, ErrTampered) {
				why = got.err
			}
		case <-patience:
			e = lost
		case <-ctx.Done():
			e = lost
		}
		if err := s.carryOut(ctx, c, p, m, m.on(e)); err != nil {
			why = err
		}
		if m.state == settling || m.state == leaving || m.state == awaiting {
			patience = time.After(settleTime)
		}
	}
	r := Result{Partner: p, Outcome: m.outcome}
	switch m.outcome {
	case Kept, KeptUnsure:
		return r, why
	case Lost:
		return r, errors.Join(ErrLost, why)
	}
	return r, errors.Join(why)
}

// carryOut does what the state machine says. It fails if the own half cannot be written, or undone.
func (s Side) carryOut(ctx context.Context, c *conn, p Partner, m *settlement, do step) error {
	var err error
	for {
		_ = c.SetWriteDeadline(time.Now().Add(helloTime))
		if do.send != 0 {
			reason := ""
			if do.send == kindAbort {
				reason = "its people have not confirmed the code"
				if m.outcome == Failed {
					reason = "it cannot write the peer"
				}
			}
			if serr := c.send(do.send, []byte(reason)); serr != nil && m.state != ended {
				do = m.on(lost)
				continue
			}
		}
		if do.undo {
			if uerr := s.Undo(p); uerr != nil {
				err = errors.Join(err, fmt.Errorf("this host's half of the peer could not be taken back: %w", uerr))
			}
		}
		if !do.write {
			return err
		}
		e := wrote
		// Once it has begun it is carried through.
		if werr := s.Write(context.WithoutCancel(ctx), p, c.keys.psk); werr != nil {
			e, err = writeFailed, errors.Join(err, werr)
		}
		do = m.on(e)
	}
}

// reasonOf is the first line of an error, for the other host.
func reasonOf(err error) string {
	s := err.Error()
	for i, r := range s {
		if r == '\n' {
			s = s[:i]
			break
		}
	}
	return s[:min(len(s), maxText)]
}
