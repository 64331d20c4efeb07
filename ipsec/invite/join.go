package invite

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// ErrUnreachable means that nobody answers at any address of a token.
var ErrUnreachable = errors.New("nobody answers at the addresses of the invitation")

// Join takes part in an invitation, and becomes the inviter's peer. It fails with ErrUnreachable,
// ErrUnknown, ErrUsed and ErrExpired, and otherwise where this host has nothing of the other in the end.
func Join(ctx context.Context, t Token, s Side) (Result, error) {
	raw, err := dial(ctx, t)
	if err != nil {
		if now := s.time(); !now.Before(t.Expires) {
			return Result{}, fmt.Errorf("%w: by this host's clock %s ago", ErrExpired, now.Sub(t.Expires).Truncate(time.Second))
		}
		return Result{}, err
	}
	c := &conn{Conn: raw, role: joiner}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_ = c.SetDeadline(time.Now().Add(helloTime))
	if err := c.join(t); err != nil {
		return Result{}, err
	}
	return s.settle(ctx, c, func(p Partner) error {
		if !t.isOf(p.Host, p.Address) {
			return fmt.Errorf("%w: the inviter says other things of itself than its token", ErrTampered)
		}
		return nil
	})
}

// join is the joiner's part until the connection has keys.
func (c *conn) join(t Token) error {
	j, err := newHello(t)
	if err == nil {
		err = c.sendPlain(kindHello, j.hello.append(nil))
	}
	var body []byte
	if err == nil {
		body, err = c.expect(kindAnswer)
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
	return err
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
