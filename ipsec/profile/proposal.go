package profile

import (
	"errors"
	"fmt"
	"strings"
)

type algorithmKind uint8

const (
	kindUnknown algorithmKind = iota
	kindCipher
	kindAEAD // encryption and integrity in one
	kindIntegrity
	kindPRF
	kindDH
	kindESN
)

// algorithm is a token of a strongSwan proposal, and what the RFCs say of it.
type algorithm struct {
	kind      algorithmKind
	null      bool   // encrypts nothing
	small     bool   // 64-bit blocks
	only2     bool   // has no number in IKEv1
	kernel    bool   // userland ESP has it not
	forbidden string // why it is refused; "" if it is not
}

const (
	weakDH  = "a DH group below 2048 bits is not offered here (RFC 7146 3.2)"
	weakMAC = "MD5 is not used (RFC 3723 5.5)"
	weakDES = "DES should not be used (RFC 3723 2.3.1)"
)

// algorithms has every token that a profile may use, and those that it must not
// with the reason.
var algorithms = map[string]algorithm{
	"aes128":    {kind: kindCipher}, // AES-CBC MUST: RFC 7146 2.2
	"aes192":    {kind: kindCipher},
	"aes256":    {kind: kindCipher},
	"aes128ctr": {kind: kindCipher}, // AES-CTR MAY: RFC 7146 2.2
	"aes192ctr": {kind: kindCipher},
	"aes256ctr": {kind: kindCipher},
	"3des":      {kind: kindCipher, small: true}, // 3DES-CBC MAY: RFC 7146 2.2
	"null":      {kind: kindCipher, null: true},  // NULL MUST be supported, with integrity: RFC 7146 2.2
	"des":       {kind: kindCipher, forbidden: weakDES},

	"aes128gcm16":      {kind: kindAEAD}, // AES-GCM SHOULD: RFC 7146 2.2
	"aes192gcm16":      {kind: kindAEAD},
	"aes256gcm16":      {kind: kindAEAD},
	"chacha20poly1305": {kind: kindAEAD, only2: true},              // other transforms MAY: RFC 7146 2.2
	"aes128gmac":       {kind: kindAEAD, null: true, kernel: true}, // AES-GMAC SHOULD: RFC 7146 2.1
	"aes192gmac":       {kind: kindAEAD, null: true, kernel: true},
	"aes256gmac":       {kind: kindAEAD, null: true, kernel: true},

	"sha1":    {kind: kindIntegrity}, // HMAC-SHA1-96 MUST: RFC 7146 2.1
	"aesxcbc": {kind: kindIntegrity}, // AES-XCBC SHOULD: RFC 7146 2.1
	"sha256":  {kind: kindIntegrity},
	"sha384":  {kind: kindIntegrity},
	"sha512":  {kind: kindIntegrity},
	"md5":     {kind: kindIntegrity, forbidden: weakMAC},

	"prfsha1":    {kind: kindPRF},
	"prfaesxcbc": {kind: kindPRF},
	"prfsha256":  {kind: kindPRF},
	"prfsha384":  {kind: kindPRF},
	"prfsha512":  {kind: kindPRF},
	"prfmd5":     {kind: kindPRF, forbidden: weakMAC},

	"modp768":    {kind: kindDH, forbidden: weakDH},
	"modp1024":   {kind: kindDH, forbidden: weakDH},
	"modp1536":   {kind: kindDH, forbidden: weakDH},
	"modp2048":   {kind: kindDH},
	"modp3072":   {kind: kindDH},
	"modp4096":   {kind: kindDH},
	"modp6144":   {kind: kindDH},
	"modp8192":   {kind: kindDH},
	"ecp192":     {kind: kindDH, forbidden: weakDH},
	"ecp224":     {kind: kindDH}, // as strong as 2048 bits: SP 800-57 5.6
	"ecp256":     {kind: kindDH},
	"ecp384":     {kind: kindDH},
	"ecp521":     {kind: kindDH},
	"curve25519": {kind: kindDH, only2: true},
	"curve448":   {kind: kindDH, only2: true},

	"esn":   {kind: kindESN},
	"noesn": {kind: kindESN},
}

type proposal struct {
	kinds      [kindESN + 1]int
	null       bool
	smallBlock bool
	only2      string // an algorithm that IKEv1 does not have
}

func (p *proposal) has(k algorithmKind) bool { return p.kinds[k] > 0 }

// parseProposal reads a proposal of strongSwan such as aes128-sha256-modp2048.
func parseProposal(text string) (*proposal, error) {
	p := &proposal{}
	for _, t := range strings.Split(text, "-") {
		a := algorithms[t]
		if a.kind == kindUnknown {
			return nil, fmt.Errorf("unknown algorithm %q", t)
		}
		if a.forbidden != "" {
			return nil, fmt.Errorf("%s: %s", t, a.forbidden)
		}
		p.kinds[a.kind]++
		p.null = p.null || a.null
		p.smallBlock = p.smallBlock || a.small
		if a.only2 {
			p.only2 = t
		}
	}
	if p.null && (p.kinds[kindCipher] > 1 || p.kinds[kindAEAD] > 1) {
		return nil, errors.New("null beside a cipher leaves the choice to the peer; make two proposals")
	}
	return p, nil
}
