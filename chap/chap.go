// Package chap is the Challenge Handshake Authentication Protocol (RFC 1994) as iSCSI uses it (RFC
// 7143 sections 9.2.1 and 12.1.3): the arithmetic, the rules for secrets, and the authenticator's
// side of one exchange, in one direction or both. It knows no transport.
package chap

import (
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
)

// Algorithm is how a response is computed (IANA, PPP Authentication Algorithms).
type Algorithm uint8

// The algorithms of this package. MD5 is the one that every initiator offers.
const (
	MD5    Algorithm = 5
	SHA256 Algorithm = 7
)

const (
	// MinSecret is the shortest secret in bytes that is taken: 96 bits (RFC 7143 section 9.2.1).
	// That holds in IPsec as well: what is configured for one place is used in another.
	MinSecret = 12

	// MaxSecret is the longest secret in bytes: more than the blocks of all algorithms have.
	MaxSecret = 128

	// MaxBinary is the longest challenge and response in bytes (RFC 7143 section 12.1.3).
	MaxBinary = 1024

	// challengeLen is how many random bytes a challenge has: no two will be alike (RFC 1994
	// section 2.3), and as many as the longest response.
	challengeLen = 32

	// generatedLen is how many random bytes a generated secret has: 128 bits, what RFC 7143
	// section 9.2.1 asks for.
	generatedLen = 16
)

// Errors of this package. ErrFailed says no more than that, for whoever tries secrets.
var (
	ErrFailed    = errors.New("chap: authentication failed")
	ErrSecret    = errors.New("chap: a secret has 12 to 128 bytes, that is at least 96 bits")
	ErrEqual     = errors.New("chap: the secrets of both directions are equal; RFC 7143 section 9.2.1 demands different ones")
	ErrAlgorithm = errors.New("chap: the peer offers no algorithm that is known here")
)

// Response computes the response to a challenge (RFC 1994 section 4.1). a is one of the constants.
func Response(a Algorithm, id uint8, secret, challenge []byte) []byte {
	b := append(append([]byte{id}, secret...), challenge...)
	if a == SHA256 {
		sum := sha256.Sum256(b)
		return sum[:]
	}
	sum := md5.Sum(b)
	return sum[:]
}

// Generate returns a new random secret, in hexadecimal.
func Generate() string {
	b := make([]byte, generatedLen)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// Credentials are what a target knows of one initiator.
type Credentials struct {
	// Name and Secret authenticate the initiator.
	Name   string
	Secret []byte
	// OwnName and OwnSecret authenticate the target to it, if it asks. Without OwnSecret an
	// initiator that asks is refused.
	OwnName   string
	OwnSecret []byte
}

// Check fails with ErrSecret and ErrEqual.
func (c *Credentials) Check() error {
	for _, s := range [][]byte{c.Secret, c.OwnSecret} {
		if (len(s) > 0 || len(c.Secret) == 0) && (len(s) < MinSecret || len(s) > MaxSecret) {
			return fmt.Errorf("of %q: %w", c.Name, ErrSecret)
		}
	}
	if subtle.ConstantTimeCompare(c.Secret, c.OwnSecret) == 1 {
		return fmt.Errorf("of %q: %w", c.Name, ErrEqual)
	}
	return nil
}

// CheckAll fails as Check does for each of the credentials of one target, and with ErrEqual if an
// initiator's secret is also the target's own for another: who has the target prove itself by the one
// would have what authenticates the other.
func CheckAll(all []Credentials) error {
	for i := range all {
		if err := all[i].Check(); err != nil {
			return err
		}
		for j := range all {
			if subtle.ConstantTimeCompare(all[i].Secret, all[j].OwnSecret) == 1 {
				return fmt.Errorf("of %q and %q: %w", all[i].Name, all[j].Name, ErrEqual)
			}
		}
	}
	return nil
}

// Exchange is one authentication of an initiator. Begin it with Challenge and end it with Verify.
type Exchange struct {
	// Find returns the credentials of a name, nil if there are none.
	Find func(name string) *Credentials

	algorithm Algorithm
	id        uint8
	challenge []byte
}

// Challenge chooses the first algorithm of a list that is known, and draws the challenge. It fails
// with ErrAlgorithm.
func (x *Exchange) Challenge(offered []Algorithm) (a Algorithm, id uint8, challenge []byte, err error) {
	i := slices.IndexFunc(offered, func(a Algorithm) bool { return a == MD5 || a == SHA256 })
	if i < 0 {
		return 0, 0, nil, ErrAlgorithm
	}
	b := make([]byte, 1+challengeLen)
	rand.Read(b)
	x.algorithm, x.id, x.challenge = offered[i], b[0], b[1:]
	return x.algorithm, x.id, x.challenge, nil
}

// Peer is the challenge of an initiator that wants to know whom it talks to.
type Peer struct {
	ID        uint8
	Challenge []byte
}

// Verify judges the initiator's response, and answers its challenge if it has one (peer is not
// nil). It fails with ErrFailed, whatever was wrong. A challenge is good for one call.
func (x *Exchange) Verify(name string, response []byte, peer *Peer) (c *Credentials, ownName string, own []byte, err error) {
	challenge := x.challenge
	x.challenge = nil
	c = x.Find(name)
	known := c != nil
	if !known {
		c = &Credentials{Secret: make([]byte, MinSecret)} // takes as long
	}
	right := subtle.ConstantTimeCompare(response, Response(x.algorithm, x.id, c.Secret, challenge)) == 1
	if challenge == nil || !known || !right {
		return nil, "", nil, ErrFailed
	}
	if len(c.OwnSecret) > 0 && subtle.ConstantTimeCompare(response, Response(x.algorithm, x.id, c.OwnSecret, challenge)) == 1 {
		return nil, "", nil, ErrFailed // one secret for both directions
	}
	if peer == nil {
		return c, "", nil, nil
	}
	switch {
	case len(peer.Challenge) == 0 || len(peer.Challenge) > MaxBinary || len(c.OwnSecret) == 0:
		return nil, "", nil, ErrFailed
	case isReflected(peer.Challenge, challenge):
		return nil, "", nil, ErrFailed
	}
	return c, c.OwnName, Response(x.algorithm, peer.ID, c.OwnSecret, peer.Challenge), nil
}
