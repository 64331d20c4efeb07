package profile

import (
	"regexp"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// Algorithms are those that charon has, by its own names.
type Algorithms map[string]bool

// charonNames turns a token of a proposal into charon's name, by the first
// pattern that fits.
var charonNames = []struct {
	token *regexp.Regexp
	name  string
}{
	{regexp.MustCompile(`^aes\d+ctr$`), "AES_CTR"},
	{regexp.MustCompile(`^aes\d+gcm16$`), "AES_GCM_16"},
	{regexp.MustCompile(`^aes\d+$`), "AES_CBC"},
	{regexp.MustCompile(`^3des$`), "3DES_CBC"},
	{regexp.MustCompile(`^null$`), "NULL"},
	{regexp.MustCompile(`^chacha20poly1305$`), "CHACHA20_POLY1305"},
	{regexp.MustCompile(`^(prf|)sha1$`), "HMAC_SHA1"},
	{regexp.MustCompile(`^(prf|)sha(\d+)$`), "HMAC_SHA2_$2"},
	{regexp.MustCompile(`^aesxcbc$`), "AES_XCBC"},
	{regexp.MustCompile(`^prfaesxcbc$`), "AES128_XCBC"},
	{regexp.MustCompile(`^modp(\d+)$`), "MODP_$1"},
	{regexp.MustCompile(`^ecp(\d+)$`), "ECP_$1"},
	{regexp.MustCompile(`^curve(\d+)$`), "CURVE_$1"},
}

// charonLengths are the truncations of IKE and ESP (RFC 4868 section 2.3, RFC
// 2404, RFC 3566) that charon's names of integrity algorithms end in.
var charonLengths = map[string]string{
	"HMAC_SHA1": "_96", "HMAC_SHA2_256": "_128", "HMAC_SHA2_384": "_192", "HMAC_SHA2_512": "_256", "AES_XCBC": "_96",
}

// charonName is charon's name of a token, "" if charon itself has no part in it.
func charonName(token string) string {
	kind := algorithms[token].kind
	for _, n := range charonNames {
		if !n.token.MatchString(token) {
			continue
		}
		name := n.token.ReplaceAllString(token, n.name)
		switch kind {
		case kindPRF:
			return "PRF_" + name
		case kindIntegrity:
			return name + charonLengths[name]
		}
		return name
	}
	return ""
}

// Lacks lists the algorithms of a profile that charon does not have, as tokens
// of proposals. usable reports whether one of the profile's proposals for IKE and one
// for ESP can be used all the same. In ESP of the kernel only the groups are
// charon's.
func (a Algorithms) Lacks(p *Profile, plane esp.Plane) (lacking []string, usable bool) {
	check := func(proposals []string, mine func(algorithm) bool) bool {
		some := false
		for _, text := range proposals {
			whole := true
			for _, t := range strings.Split(text, "-") {
				name := charonName(t)
				if name == "" || a[name] || !mine(algorithms[t]) {
					continue
				}
				whole = false
				if !slices.Contains(lacking, t) {
					lacking = append(lacking, t)
				}
			}
			some = some || whole
		}
		return some
	}
	ike := check(p.IKE, func(algorithm) bool { return true })
	esp := check(p.ESPFor(plane), func(t algorithm) bool { return !plane.Offers().HoldsSAs || t.kind == kindDH })
	return lacking, ike && esp
}
