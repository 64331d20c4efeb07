package ikematrix

import (
	"cmp"
	"slices"

	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// The settings of a case and their values. In the full plan every combination of
// the first three is tried.
func factors(small bool) []factor {
	fs := []factor{
		{"ESP", []string{"aes128gcm16", "aes256gcm16", "aes128-sha1", "aes128-sha256", "aes256-sha384", "aes128ctr-aesxcbc", "3des-sha1",
			"null-sha1", "null-sha256", "chacha20poly1305", "aes128gmac"}, func(c *Case) *string { return &c.ESP }},
		{"IKE", []string{ikeV2, main1, aggressive}, func(c *Case) *string { return &c.Exchange }},
		{"authentication", []string{psk, rsa, ecdsa}, func(c *Case) *string { return &c.Auth }},
		{"identity", []string{fqdn, address, userFQDN}, func(c *Case) *string { return &c.Identity }},
		{"IKE algorithms", []string{"aes128-sha256", "aes128gcm16-prfsha256", "aes256gcm16-prfsha384", "aes256-sha384", "aes128-sha1", "3des-sha1"},
			func(c *Case) *string { return &c.Suite }},
		{"DH group", []string{"ecp256", "modp2048", "ecp384", "modp3072", "curve25519", "modp4096", "ecp521", "curve448"},
			func(c *Case) *string { return &c.Group }},
		{"PFS", []string{on, off}, func(c *Case) *string { return &c.PFS }},
		{"ESN", []string{on, off}, func(c *Case) *string { return &c.ESN }},
		{"mode", []string{modeTunnel, modeTransport}, func(c *Case) *string { return &c.Mode }},
		{"network", []string{ipv4, ipv6}, func(c *Case) *string { return &c.Network }},
	}
	if small {
		for i := range fs {
			switch fs[i].name {
			case "IKE algorithms":
				fs[i].values = fs[i].values[:2]
			case "DH group":
				fs[i].values = fs[i].values[:2]
			}
		}
	}
	return fs
}

// withDefaults fills in what is open in a case.
func (c Case) withDefaults() Case {
	for _, f := range factors(false) {
		if p := f.get(&c); *p == "" {
			*p = f.values[0]
		}
	}
	if c.Exchange == aggressive && c.Auth == psk && c.Charon == "" {
		c.Charon = careless
	}
	return c
}

// Row is a case and its expected result.
type Row struct {
	Case
	// Refusal is why it has to be refused; nil: it has to work.
	Refusal *Refusal
	// Stream adds a stream of package verbs: RDMA Reads and Writes.
	Stream bool
}

// Plan lists the rows for a data plane, the same ones each time.
//
// Userland: every ESP algorithm with every kind of IKE and authentication, and every
// pair of values of any two other settings. Kernel: the code runs in an emulated
// machine, so there are all pairs only, and just two of IKE's algorithms, which do not
// matter to the kernel. Both: also the built-in profiles as they are, and an example of
// everything that is refused.
//
// Few: every value of every setting in some row that works, the built-in profiles,
// and the refusals.
func Plan(plane esp.Plane, few bool) []Row {
	small := plane == esp.Kernel
	refusals := refusalsOf(plane)
	conflict := func(c *Case) bool { return find(refusals, c) != nil }
	strong := []int{0, 1, 2}
	if small {
		strong = []int{0, 1}
	}
	good, left := cover(factors(small), strong, conflict)
	var rows []Row
	add := func(c Case) {
		c = c.withDefaults()
		if slices.ContainsFunc(rows, func(r Row) bool { return r.Case == c }) {
			return
		}
		rows = append(rows, Row{Case: c, Refusal: find(refusals, &c)})
	}
	for _, name := range profile.Names() {
		add(Case{Whole: name, Exchange: exchangeOf(name)})
	}
	if few {
		good = eachValueOnce(factors(small), good)
	}
	for _, c := range good {
		add(c)
	}
	for _, c := range left {
		if !few && !small && c.ESP != "" && c.Exchange != "" && c.Auth != "" {
			add(c)
		}
	}
	if !small && !few {
		// Groups that take seconds, or that nobody needs.
		for _, g := range []string{"ecp224", "modp6144", "modp8192"} {
			add(Case{Group: g, PFS: off})
		}
		add(Case{Group: "modp2048", Charon: noOpenSSL})
	}
	for _, r := range refusals {
		for _, c := range r.Examples {
			add(c)
		}
	}
	// Rows of one way to set strongSwan up stand together.
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(charonSetting(a.Charon), charonSetting(b.Charon)) })
	streams := map[string]bool{}
	for i := range rows {
		r := &rows[i]
		if key := r.Exchange + r.Mode; r.Refusal == nil && !streams[key] {
			r.Stream, streams[key] = true, true
		}
	}
	return rows
}

// exchangeOf is how a profile does phase 1.
func exchangeOf(name string) string {
	p, err := profile.ByName(name)
	switch {
	case err != nil || p.Version == 2:
		return ikeV2
	case p.Aggressive:
		return aggressive
	}
	return main1
}
