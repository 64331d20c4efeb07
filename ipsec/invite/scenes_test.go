package invite

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// scene is an attack that one check stops. show fails if the attack succeeds.
type scene struct {
	name  string
	check checks.Check
	show  func(t *testing.T) error
}

var scenes = []scene{
	{"who does not know the token's key uses the invitation up", checks.InviteToken, showUnknown},
	{"the token of an invitation that was used serves another joiner", checks.InviteOnce, showReuse},
	{"the token of an invitation that has expired serves a joiner", checks.InviteExpiry, showExpired},
	{"a man in the middle with the token searches for a key that makes the codes equal", checks.InviteCommitment, showGrinding},
	{"a host becomes a peer although only one of its people has confirmed", checks.InviteConfirm, showUnconfirmed},
}

func TestScenes(t *testing.T) {
	if checks.Weakened {
		t.Skip("with checks that are switched off it is TestScenesWithoutTheirChecks")
	}
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			if err := s.show(t); err != nil {
				t.Error(err)
			}
		})
	}
}

func showUnknown(t *testing.T) error {
	a := newParty(alpha, yes)
	v := invite(t, a, soon())
	c := v.dial()
	if err := c.sendPlain(kindHello, hello{id: v.token.id}.append(nil)); err != nil {
		return err
	}
	if _, err := c.expect(kindAnswer); err != nil && !errors.Is(err, ErrUnknown) {
		t.Errorf("the refusal is %v", err)
	}
	c.Close()
	_, err := Join(t.Context(), v.token, newParty(beta, yes).Side)
	return err
}

func helloOf(t *testing.T, k Token) hello {
	j, err := newHello(k)
	if err != nil {
		t.Fatal(err)
	}
	return j.hello
}

func showReuse(t *testing.T) error {
	p := &pending{token: newToken(t, soon(), alpha, here)}
	if err := p.take(time.Now(), helloOf(t, p.token)); err != nil {
		return err
	}
	switch err := p.take(time.Now(), helloOf(t, p.token)); {
	case err == nil:
		return errors.New("a second joiner is served")
	case !errors.Is(err, ErrUsed):
		t.Errorf("the refusal is %v", err)
	}
	return nil
}

func showExpired(t *testing.T) error {
	p := &pending{token: newToken(t, tokenTime, alpha, here)}
	switch err := p.take(tokenTime, helloOf(t, p.token)); {
	case err == nil:
		return errors.New("a joiner is served after the end")
	case !errors.Is(err, ErrExpired):
		t.Errorf("the refusal is %v", err)
	}
	if err := p.take(tokenTime.Add(-time.Second), helloOf(t, p.token)); err != nil {
		t.Errorf("and before it: %v", err)
	}
	return nil
}

// showGrinding: he knows the code on the joiner's screen, and looks for an Opening with which the inviter's ends in the same
// three digits; for all six it takes a thousand times as long.
func showGrinding(t *testing.T) error {
	k := newToken(t, soon(), alpha, here)
	const wanted, digits = 123, 1000
	j, err := newHello(k)
	if err != nil {
		return err
	}
	a, err := newAnswer(k, j.hello)
	if err != nil {
		return err
	}
	shared, err := agree(j.key, a.answer)
	if err != nil {
		return err
	}
	for n := range 100 * digits {
		s := j.own
		s.nonce[0], s.nonce[1], s.nonce[2] = byte(n), byte(n>>8), byte(n>>16)
		s.mac = k.macOf("opening", a.answer.append(j.hello.append(nil)), s.appendSigned(nil))
		own, err := deriveKeys(k, shared, j.hello, a.answer, s)
		if err != nil {
			return err
		}
		if own.code%digits != wanted || s.nonce == j.own.nonce {
			continue
		}
		got, err := a.opened(s)
		if err == nil && got.code%digits == wanted {
			return fmt.Errorf("the code is the one he wanted, after %d attempts", n)
		}
		if !errors.Is(err, ErrTampered) {
			t.Errorf("the refusal is %v", err)
		}
		return nil
	}
	return errors.New("no nonce was found: this shows nothing")
}

func showUnconfirmed(t *testing.T) error {
	a, b := newParty(alpha, yes), newParty(beta, nil)
	b.Ask = func(ctx context.Context, _ Partner, _ string) (bool, error) {
		<-ctx.Done()
		return false, ctx.Err()
	}
	a.patient, b.patient = 300*time.Millisecond, 300*time.Millisecond
	wrote := make(chan struct{}, 2)
	write := a.Write
	a.Write = func(ctx context.Context, p Partner, s auth.Secret) error {
		wrote <- struct{}{}
		return write(ctx, p, s)
	}
	v := invite(t, a, soon())
	_, _ = Join(t.Context(), v.token, b.Side)
	v.ending()
	if len(wrote) > 0 {
		return errors.New("the peer is written")
	}
	return nil
}
