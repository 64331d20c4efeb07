package invite

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// role is which end of an exchange a host is. Nothing that one role sends counts as sent by the other:
// MACs and keys differ.
type role int

const (
	inviter role = iota
	joiner
)

func (r role) other() role { return 1 - r }

// macOf is a MAC by the token's key. label says which message it is of.
func (t Token) macOf(label string, parts ...[]byte) (mac [macSize]byte) {
	h := hmac.New(sha256.New, (**t.key)[:])
	h.Write([]byte("ironwarp invitation " + label))
	for _, p := range parts {
		h.Write(p)
	}
	h.Sum(mac[:0])
	return mac
}

// commit binds a joiner to its share before it has seen the inviter's.
func commit(id [idSize]byte, s share) [32]byte {
	return sha256.Sum256(s.appendSigned(append([]byte("ironwarp invitation commitment"), id[:]...)))
}

// keys are what an exchange gives both hosts.
type keys struct {
	psk  auth.Secret
	code uint32
	seal [2]cipher.AEAD // by the role that sends
}

// deriveKeys makes them of X25519's result and the token's key, for this transcript alone. It fails only
// where the system's cryptography does.
func deriveKeys(t Token, shared []byte, h hello, answer, opening share) (k keys, err error) {
	transcript := sha256.New()
	transcript.Write(h.append([]byte("ironwarp invitation transcript")))
	transcript.Write(answer.append(nil))
	transcript.Write(opening.append(nil))
	secret := append(append([]byte{}, shared...), (**t.key)[:]...)
	prk, err := hkdf.Extract(sha256.New, secret, transcript.Sum(nil))
	if err != nil {
		return keys{}, err
	}
	expand := func(label string, n int) []byte {
		b, eerr := hkdf.Expand(sha256.New, prk, "ironwarp invitation "+label, n)
		err = errors.Join(err, eerr)
		return b
	}
	psk := base64.StdEncoding.AppendEncode(nil, expand("pre-shared key", 32))
	code := expand("code", 8)
	sealers := [2][]byte{inviter: expand("sealed by the inviter", 32), joiner: expand("sealed by the joiner", 32)}
	if err != nil {
		return keys{}, err
	}
	if k.psk, err = auth.NewSecret(psk); err != nil {
		return keys{}, err
	}
	k.code = uint32(binary.BigEndian.Uint64(code) % codes)
	for r, key := range sealers {
		block, err := aes.NewCipher(key)
		if err != nil {
			return keys{}, err
		}
		if k.seal[r], err = cipher.NewGCM(block); err != nil {
			return keys{}, err
		}
	}
	return k, nil
}

// formatCode is a code as both screens show it.
func formatCode(code uint32) string {
	s := fmt.Sprintf("%0*d", codeDigits, code)
	return s[:codeDigits/2] + " " + s[codeDigits/2:]
}
