package invite

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// conn sends and receives messages, sealed ones once it has keys.
type conn struct {
	net.Conn
	role     role
	keys     keys
	sent     uint64 // sealed messages
	received uint64
}

// sendPlain sends a message in clear. It fails as the connection does.
func (c *conn) sendPlain(k kind, body []byte) error {
	b := binary.BigEndian.AppendUint16([]byte{byte(k)}, uint16(len(body)))
	_, err := c.Write(append(b, body...))
	return err
}

// receivePlain receives one. It fails as the connection does, and with errMalformed at a message that is
// longer than any.
func (c *conn) receivePlain() (kind, []byte, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(binary.BigEndian.Uint16(head[1:]))
	if n > maxFrame {
		return 0, nil, fmt.Errorf("%w: %d bytes", errMalformed, n)
	}
	body := make([]byte, n)
	_, err := io.ReadFull(c, body)
	return kind(head[0]), body, err
}

// expect receives a message of one kind. It fails with the reason of a Refusal, and at any other kind.
func (c *conn) expect(want kind) ([]byte, error) {
	k, body, err := c.receivePlain()
	switch {
	case err != nil:
		return nil, err
	case k == kindRefusal:
		return nil, refusalOf(body)
	case k != want:
		return nil, fmt.Errorf("%w: kind %d in place of %d", errMalformed, k, want)
	}
	return body, nil
}

// nonce numbers the sealed messages of one direction, whose key seals nothing else.
func nonce(n uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 4), n) }

// send sends a sealed message. It fails as the connection does.
func (c *conn) send(k kind, body []byte) error {
	sealed := c.keys.seal[c.role].Seal(nil, nonce(c.sent), append([]byte{byte(k)}, body...), nil)
	c.sent++
	return c.sendPlain(kindSealed, sealed)
}

// receive receives a sealed message. It fails as the connection does, and with ErrTampered at one that is
// not the other's next.
func (c *conn) receive() (kind, []byte, error) {
	body, err := c.expect(kindSealed)
	if err != nil {
		return 0, nil, err
	}
	plain, err := c.keys.seal[c.role.other()].Open(nil, nonce(c.received), body, nil)
	if err != nil || len(plain) == 0 {
		return 0, nil, ErrTampered
	}
	c.received++
	return kind(plain[0]), plain[1:], nil
}

// The codes of refusals, of which nothing is authenticated.
var refusals = map[byte]error{1: ErrUnknown, 2: ErrUsed, 3: ErrExpired}

func codeOfRefusal(err error) []byte {
	for code, r := range refusals {
		if errors.Is(err, r) {
			return []byte{code}
		}
	}
	return []byte{0}
}

func refusalOf(body []byte) error {
	if len(body) == 1 && refusals[body[0]] != nil {
		return refusals[body[0]]
	}
	return errors.New("the inviter refuses, and gives no reason that this version knows")
}

// addresses are those of a connection: this host's, then the other's.
func (c *conn) addresses() (mine, theirs netip.Addr, err error) {
	m, err := netip.ParseAddrPort(c.LocalAddr().String())
	t, terr := netip.ParseAddrPort(c.RemoteAddr().String())
	return m.Addr().Unmap().WithZone(""), t.Addr().Unmap().WithZone(""), errors.Join(err, terr)
}

// ErrTranslated means that something translates addresses between the hosts.
var ErrTranslated = errors.New("something between the hosts translates their addresses, by which they are known as peers")

// ErrLinkLocal means that the connection has an address that means nothing without a link, which no peer's address names.
var ErrLinkLocal = errors.New("the hosts reach each other by a link-local address, by which no peer is known")

// introduce exchanges Details. It fails as the connection does, with ErrTranslated where the hosts see
// different addresses, and with ErrLinkLocal.
func (c *conn) introduce(own Host) (Partner, error) {
	mine, theirs, err := c.addresses()
	switch {
	case err != nil:
		return Partner{}, err
	case mine.IsLinkLocalUnicast() || theirs.IsLinkLocalUnicast(): // both hosts see it, so neither has to say it
		return Partner{}, fmt.Errorf("%w: they are %s here and %s there", ErrLinkLocal, mine, theirs)
	}
	if err := c.send(kindDetails, details{own, mine, theirs}.append(nil)); err != nil {
		return Partner{}, err
	}
	k, body, err := c.receive()
	if err != nil {
		return Partner{}, err
	}
	if k == kindAbort {
		return Partner{}, abortOf(body)
	}
	d, err := parseDetails(body)
	switch {
	case k != kindDetails || err != nil:
		return Partner{}, errMalformed
	case d.mine != theirs || d.theirs != mine:
		return Partner{}, fmt.Errorf("%w: the other host is %s to itself and %s to this one, which is %s to it and %s to itself", ErrTranslated, d.mine, theirs, d.theirs, mine)
	}
	return Partner{Host: d.host, Address: theirs, LocalAddress: mine}, nil
}

// Partner is the other host of an exchange.
type Partner struct {
	Host
	Address      netip.Addr // of the connection, which both see
	LocalAddress netip.Addr // this host's
}

// Side is one host's part in an exchange: what it says of itself, and what it does.
type Side struct {
	Own Host

	// Check says why the other host cannot become a peer, before people are asked.
	Check func(Partner) error
	// Ask shows the code and reports whether this host's people confirm it. It ends with the context.
	Ask func(ctx context.Context, p Partner, code string) (bool, error)
	// Write makes the other host a peer, with the pre-shared key. It leaves nothing if it fails.
	Write func(context.Context, Partner, auth.Secret) error
	// Undo takes that back.
	Undo func(Partner) error

	now     func() time.Time // nil: time.Now
	patient time.Duration    // 0: confirmTime
}

func (s Side) time() time.Time {
	if s.now != nil {
		return s.now()
	}
	return time.Now()
}

// AbortError is the reason that the other host has given for its end of an exchange.
type AbortError struct{ Reason string }

func (e *AbortError) Error() string { return "the other host has ended it: " + e.Reason }

func abortOf(body []byte) error {
	return &AbortError{printable.Text(printable.Cut(string(body), maxText))}
}
