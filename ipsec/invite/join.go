package invite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// ErrUnreachable means that nobody answers at any address of a token.
var ErrUnreachable = errors.New("nobody answers at the addresses of the invitation")

// Join takes part in an invitation, and becomes the inviter's peer. It fails with ErrUnreachable,
// ErrUnknown, ErrUsed and ErrExpired, and otherwise where this host has nothing of the other in the end.
func Join(ctx context.Context, t Token, s Side) (Result, error) {
	c, err := s.reach(ctx, t)
	if err != nil {
		return Result{}, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	return s.settle(ctx, c, func(p Partner) error {
		if !t.isOf(p.Host, p.Address) {
			return fmt.Errorf("%w: the inviter says other things of itself than its token", ErrTampered)
		}
		return nil
	})
}

// reach connects, up to where the connection has keys. A connection that is cut before the inviter has answered, as while others flood its
// port, is tried anew: whoever cuts it has seen no more than a commitment.
func (s Side) reach(ctx context.Context, t Token) (*conn, error) {
	for try := 1; ; try++ {
		raw, err := dial(ctx, t)
		if err != nil {
			if now := s.time(); !now.Before(t.Expires) {
				return nil, fmt.Errorf("%w: by this host's clock %s ago", ErrExpired, now.Sub(t.Expires).Truncate(time.Second))
			}
			return nil, err
		}
		c := &conn{Conn: raw, role: joiner}
		stop := context.AfterFunc(ctx, func() { raw.Close() })
		_ = c.SetDeadline(time.Now().Add(helloTime))
		answered, err := c.join(t)
		stop()
		if err == nil {
			return c, nil
		}
		raw.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if answered || try == joinTries || !isCut(err) {
			return nil, lostIfGone(err)
		}
		select {
		case <-time.After(joinPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// isCut reports whether a connection has failed since the other host, or somebody between, has ended it.
func isCut(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// lostIfGone is ErrLost where a connection has failed, with the reason.
func lostIfGone(err error) error {
	if isCut(err) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w (%w)", ErrLost, err)
	}
	return err
}

// join is the joiner's part until the connection has keys. It reports whether the inviter has answered.
func (c *conn) join(t Token) (hasAnswered bool, err error) {
	j, err := newHello(t)
	if err == nil {
		err = c.sendPlain(kindHello, j.hello.append(nil))
	}
	var body []byte
	if err == nil {
		body, err = c.expect(kindAnswer)
		hasAnswered = err == nil
	}
	var answer, opening share
	if err == nil {
		answer, err = parseShare(body)
	}
	if err == nil {
		opening, c.keys, err = j.answered(answer)
	}
	if err == nil {
		err = c.sendPlain(kindOpening, opening.append(nil))
	}
	return hasAnswered, err
}

// dial tries the token's addresses in turn.
func dial(ctx context.Context, t Token) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTime}
	d.SetMultipathTCP(false)
	err := error(nil)
	for _, a := range t.Addresses {
		c, derr := d.DialContext(ctx, "tcp", netip.AddrPortFrom(a, t.Port).String())
		if derr == nil {
			return c, nil
		}
		err = errors.Join(err, derr)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
}
