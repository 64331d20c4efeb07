package invite

import (
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Why a Hello is refused.
var (
	ErrUnknown = errors.New("the inviter does not know this token")
	ErrUsed    = errors.New("the invitation was used already: it serves one joiner")
	ErrExpired = errors.New("the invitation has expired")
)

// ErrTampered means that a message is not by whom it should be, or was changed under way.
var ErrTampered = errors.New("somebody between the hosts changes messages, or one of them is none of ironwarp's")

// pending is an invitation at the inviter.
//
//	open --Hello with a MAC by the token's key--> taken: any other is ErrUsed
//	  \--Token.Expires--> expired: ErrExpired
//
// Without the token's key a Hello is ErrUnknown in each of these, and changes nothing.
type pending struct {
	token Token

	mu    sync.Mutex // guards the fields below it
	taken bool
}

// take admits the one joiner that an invitation serves. It fails with ErrUnknown, ErrExpired or ErrUsed.
func (p *pending) take(now time.Time, h hello) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	mac := p.token.macOf("hello", h.appendSigned(nil))
	known := h.id == p.token.id && hmac.Equal(mac[:], h.mac[:])
	switch {
	case !knowsToken(known):
		return ErrUnknown
	case !isUnexpired(now, p.token.Expires):
		return ErrExpired
	case !isUnused(p.taken):
		return ErrUsed
	}
	p.taken = true
	return nil
}

// ownShare is a fresh share and its private key.
func ownShare() (*ecdh.PrivateKey, share, error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, share{}, err
	}
	var s share
	copy(s.point[:], key.PublicKey().Bytes())
	rand.Read(s.nonce[:])
	return key, s, nil
}

// agree is X25519 with the other's share. It fails with ErrTampered at a point of low order.
func agree(key *ecdh.PrivateKey, s share) ([]byte, error) {
	point, err := ecdh.X25519().NewPublicKey(s.point[:])
	if err != nil {
		return nil, err
	}
	shared, err := key.ECDH(point)
	if err != nil {
		return nil, fmt.Errorf("%w: a public key of low order", ErrTampered)
	}
	return shared, nil
}

// answering is the inviter's part of an exchange, after a Hello that pending.take has admitted.
type answering struct {
	token  Token
	hello  hello
	key    *ecdh.PrivateKey
	answer share
}

// newAnswer makes the Answer to a Hello. It fails only where the system's cryptography does.
func newAnswer(t Token, h hello) (*answering, error) {
	key, s, err := ownShare()
	if err != nil {
		return nil, err
	}
	s.mac = t.macOf("answer", h.append(nil), s.appendSigned(nil))
	return &answering{token: t, hello: h, key: key, answer: s}, nil
}

// opened is given the Opening. It fails with ErrTampered unless that has a MAC by the token's key and is
// what the Hello has committed to.
func (a *answering) opened(s share) (keys, error) {
	mac := a.token.macOf("opening", a.answer.append(a.hello.append(nil)), s.appendSigned(nil))
	if !knowsToken(hmac.Equal(mac[:], s.mac[:])) {
		return keys{}, fmt.Errorf("%w: the joiner's key is not signed by the token's", ErrTampered)
	}
	if !opensCommitment(commit(a.token.id, s) == a.hello.commitment) {
		return keys{}, fmt.Errorf("%w: the joiner's key is another than it has committed to", ErrTampered)
	}
	shared, err := agree(a.key, s)
	if err != nil {
		return keys{}, err
	}
	return deriveKeys(a.token, shared, a.hello, a.answer, s)
}

// joining is the joiner's part of an exchange.
type joining struct {
	token Token
	hello hello
	key   *ecdh.PrivateKey
	own   share
}

// newHello begins an exchange. It fails only where the system's cryptography does.
func newHello(t Token) (*joining, error) {
	key, s, err := ownShare()
	if err != nil {
		return nil, err
	}
	h := hello{id: t.id, commitment: commit(t.id, s)}
	h.mac = t.macOf("hello", h.appendSigned(nil))
	return &joining{token: t, hello: h, key: key, own: s}, nil
}

// answered is given the Answer, and returns the Opening. It fails with ErrTampered unless the Answer has a
// MAC by the token's key.
func (j *joining) answered(answer share) (opening share, k keys, err error) {
	mac := j.token.macOf("answer", j.hello.append(nil), answer.appendSigned(nil))
	if !knowsToken(hmac.Equal(mac[:], answer.mac[:])) {
		return share{}, keys{}, fmt.Errorf("%w: the inviter's key is not signed by the token's", ErrTampered)
	}
	opening = j.own
	opening.mac = j.token.macOf("opening", answer.append(j.hello.append(nil)), opening.appendSigned(nil))
	shared, err := agree(j.key, answer)
	if err != nil {
		return share{}, keys{}, err
	}
	k, err = deriveKeys(j.token, shared, j.hello, answer, opening)
	return opening, k, err
}
