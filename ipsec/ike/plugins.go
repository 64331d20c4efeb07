package ike

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
)

// needed are sets of charon's plugins of which it has to have loaded at least
// one each, with what for, and where Debian has them.
var needed = []struct {
	anyOf  []string
	role   string
	advice string
}{
	{[]string{"kernel-netlink", "kernel-pfroute"}, "talks to the kernel of addresses and routes", "load kernel-netlink, which is part of strongswan-charon or libcharon-standard-plugins"},
	{[]string{"kernel-netlink", "kernel-pfkey", esp.Plugin}, "does ESP", "load kernel-netlink where the kernel has ESP, else kernel-libipsec of libcharon-extra-plugins"},
	{[]string{"openssl", "gcrypt", "botan", "wolfssl", "aes", "af-alg"}, "does AES", "load openssl, which is part of libstrongswan-standard-plugins"},
	{[]string{"openssl", "gcrypt", "botan", "wolfssl", "gmp", "curve25519"}, "does Diffie-Hellman", "load openssl, which is part of libstrongswan-standard-plugins"},
	{[]string{"socket-default", "socket-dynamic"}, "sends and receives IKE", "load socket-default, which is part of strongswan-charon"},
}

// checkPlugins says plainly what charon cannot do here with the plugins that it
// has loaded; nil: all that is needed is there.
func checkPlugins(socket string, loaded []string) error {
	var lacks, fixes []string
	for _, n := range needed {
		if slices.ContainsFunc(n.anyOf, func(p string) bool { return slices.Contains(loaded, p) }) {
			continue
		}
		lacks = append(lacks, fmt.Sprintf("none that %s (%s)", n.role, strings.Join(n.anyOf, ", ")))
		if !slices.Contains(fixes, n.advice) {
			fixes = append(fixes, n.advice)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return &charon.Error{Op: "plugins", Socket: socket, Kind: negotiation.ErrPluginMissing,
		Err:    fmt.Errorf("it has loaded %s", strings.Join(lacks, "; ")),
		Advice: strings.Join(fixes, "; ") + "; see charon.load in strongswan.conf, and systemctl restart strongswan"}
}
