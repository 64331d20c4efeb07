package ikematrix

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// Refusal is something that a data plane cannot do, and that has to be refused.
type Refusal struct {
	Why string // for people
	By  string // who refuses
	// Words are part of the refusal's message.
	Words string
	// Kind is the error of package ipsec; nil: where strongSwan refuses, any error that
	// says so.
	Kind error
	// Holds reports whether it concerns a case; what is open in the case concerns
	// nothing.
	Holds func(*Case) bool
	// Examples are cases that are always tried; settings that they leave open are the
	// usual ones.
	Examples []Case
}

func find(all []*Refusal, c *Case) *Refusal {
	for _, r := range all {
		if r.Holds(c) {
			return r
		}
	}
	return nil
}

func refusalsOf(plane esp.Plane) []*Refusal {
	all := []*Refusal{
		{Why: "aggressive mode is for hosts that have names and no fixed addresses; with addresses main mode does the same (RFC 3723 2.3.3)", By: byUs,
			Words:    "aggressive mode",
			Holds:    func(c *Case) bool { return c.Exchange == aggressive && c.Identity == address },
			Examples: []Case{{Exchange: aggressive, Auth: rsa, Identity: address}}},
		{Why: "in aggressive mode a hash of the PSK goes out in clear, and strongSwan has to be told not to care", By: byStrongSwan,
			Words:    "Aggressive Mode PSK disabled for security reasons",
			Holds:    func(c *Case) bool { return c.Exchange == aggressive && c.Auth == psk && c.Charon == strict },
			Examples: []Case{{Exchange: aggressive, Auth: psk, Charon: strict}}},
		{Why: "IKEv1 has no number for AES-GCM in phase 1 (RFC 5282 is for IKEv2)", By: byUs, Words: "IKEv1 has no combined modes for itself", Kind: profile.ErrRefused,
			Holds:    func(c *Case) bool { return v1(c) && strings.Contains(c.Suite, "gcm") },
			Examples: []Case{{Exchange: main1, Suite: "aes128gcm16-prfsha256"}, {Exchange: aggressive, Auth: rsa, Suite: "aes256gcm16-prfsha384"}}},
		{Why: "IKEv1 has no number for ChaCha20-Poly1305 (RFC 7634 is for IKEv2)", By: byUs, Words: "chacha20poly1305 is for IKEv2 only", Kind: profile.ErrRefused,
			Holds:    func(c *Case) bool { return v1(c) && c.ESP == "chacha20poly1305" },
			Examples: []Case{{Exchange: main1, ESP: "chacha20poly1305"}}},
		{Why: "IKEv1 has no number for these curves (RFC 8031 is for IKEv2), though two strongSwans agree on them", By: byUs, Words: "is for IKEv2 only", Kind: profile.ErrRefused,
			Holds:    func(c *Case) bool { return v1(c) && strings.HasPrefix(c.Group, "curve") },
			Examples: []Case{{Exchange: main1, Group: "curve25519"}, {Exchange: main1, Group: "curve448"}}},
		forbidden("DH groups below 2048 bits are not offered (RFC 7146 3.2)", "a DH group below 2048 bits", Case{Group: "modp1024"}),
		forbidden("MD5 is not used (RFC 3723 5.5)", "MD5 is not used", Case{ESP: "aes128-md5"}),
		forbidden("DES should not be used (RFC 3723 2.3.1)", "DES should not be used", Case{ESP: "des-sha1"}),
		forbidden("ESP has integrity, always (RFC 3723 2.3.1)", "it has no integrity", Case{ESP: "aes128ctr"}),
		forbidden("ID_KEY_ID must not be used (RFC 7146 3.1)", "ID_KEY_ID must not be used", Case{Identity: keyID}),
		forbidden("subnets are no identities (RFC 7146 3.1)", "subnets, ranges and key ids are not possible", Case{Identity: subnet}),
	}
	if plane == esp.Userland {
		all = append(all,
			&Refusal{Why: "userland ESP has tunnel mode only", By: byUs, Words: "has tunnel mode only", Kind: esp.ErrCannot,
				Holds:    func(c *Case) bool { return c.Mode == modeTransport },
				Examples: []Case{{Mode: modeTransport}, {Mode: modeTransport, Exchange: main1}, {Mode: modeTransport, Exchange: aggressive, Auth: rsa}}},
			&Refusal{Why: "userland ESP has no AES-GMAC", By: byUs, Words: "userland ESP has none of it", Kind: esp.ErrCannot,
				Holds: func(c *Case) bool { return c.ESP == "aes128gmac" }},
			missing("configured DH group ECP_256 not supported", Case{Group: "ecp256"}),
			missing("ENCRYPTION_ALGORITHM 3DES_CBC (key size 0) not supported", Case{Suite: "3des-sha1"}),
			missing("unsupported encryption algorithm AES_CTR", Case{ESP: "aes128ctr-aesxcbc"}),
			missing("unsupported AEAD algorithm CHACHA20_POLY1305", Case{ESP: "chacha20poly1305"}),
			missing("parsing ECDSA private key failed", Case{Auth: ecdsa}),
		)
	}
	return all
}

// missing is the refusal of the example's one setting by a strongSwan without the
// plugin openssl.
func missing(words string, example Case) *Refusal {
	value := example.Group + example.Suite + example.ESP + example.Auth
	example.Charon = noOpenSSL
	if example.Group == "" {
		example.Group = "modp2048"
	}
	return &Refusal{Why: "strongSwan's plugin openssl, which has " + value + ", is missing", By: byStrongSwan, Words: words, Examples: []Case{example},
		Holds: func(c *Case) bool {
			return c.Charon == noOpenSSL && slices.Contains([]string{c.Group, c.Suite, c.ESP, c.Auth}, value)
		}}
}

// forbidden is the refusal of the example's one setting, which the RFCs forbid.
func forbidden(why, words string, example Case) *Refusal {
	return &Refusal{Why: why, By: byUs, Words: words, Examples: []Case{example}, Holds: func(c *Case) bool {
		return example.Group != "" && c.Group == example.Group || example.ESP != "" && c.ESP == example.ESP || example.Identity != "" && c.Identity == example.Identity
	}}
}

// Who refuses.
const (
	byUs         = "IronWarp"
	byStrongSwan = "strongSwan"
)

func v1(c *Case) bool { return c.Exchange == main1 || c.Exchange == aggressive }

// check compares a refusal to the expected one. heard is what strongSwan has logged.
func (r *Refusal) check(err error, heard []string) string {
	var failed *negotiation.Error
	var refused *charon.CommandError
	theirs := errors.As(err, &failed) || errors.As(err, &refused) || errors.Is(err, negotiation.ErrPluginMissing)
	if r.By == byStrongSwan && !theirs || r.Kind != nil && !errors.Is(err, r.Kind) {
		return fmt.Sprintf("refused, but not for the reason expected (%s): %v", r.Why, err)
	}
	said := []string{err.Error()}
	if r.By == byStrongSwan {
		said = append(said, heard...)
	}
	for _, line := range said {
		if strings.Contains(line, r.Words) {
			return ""
		}
	}
	return fmt.Sprintf("refused without the words %q: %v", r.Words, err)
}
