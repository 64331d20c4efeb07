package conf

import (
	"strconv"
	"strings"
	"time"
)

// option is one name of fabric.conf.
type option struct {
	name  string
	alias string // another name of it
	def   string // as it is written in a file
	takes string // what its values are
	set   func(c *Config, value string) bool
}

// options are all names, in the order of the documentation. They and their defaults are OpenSM's and
// UFM's, except for sm_key and sa_key: OpenSM's 0x1 is known to everybody.
var options = []option{
	{"m_key", "", "(null)", aPath, keyFile(MKey)},
	{"m_key_protection", "m_key_protection_level", "0", "a number from 0 to 3", number(3, func(c *Config, n uint64) { c.MKeyProtection = uint8(n) })},
	{"m_key_lease_period", "", "0", "seconds, from 0 to 65535", number(65535, func(c *Config, n uint64) { c.MKeyLeasePeriod = uint16(n) })},
	{"m_key_lookup", "", "FALSE", aBoolean, boolean(func(c *Config) *bool { return &c.MKeyLookup })},
	{"m_key_per_port", "", "FALSE", aBoolean, boolean(func(c *Config) *bool { return &c.MKeyPerPort })},
	{"sm_key", "", "(null)", aPath, keyFile(SMKey)},
	{"sm_priority", "", "0", "a number from 0 to 15", number(15, func(c *Config, n uint64) { c.SMPriority = uint8(n) })},
	{"sminfo_polling_timeout", "", "10000", "milliseconds, from 100 to 600000", func(c *Config, value string) bool {
		n, ok := parseNumber(value)
		c.SMInfoPollingTimeout = time.Duration(n) * time.Millisecond
		return ok && n >= 100 && n <= 600000
	}},
	{"polling_retry_number", "", "4", "a number from 0 to 100", number(100, func(c *Config, n uint64) { c.PollingRetryNumber = int(n) })},
	{"sa_key", "", "(null)", aPath, keyFile(SAKey)},
	{"sa_enhanced_trust_model", "", "FALSE", aBoolean, boolean(func(c *Config) *bool { return &c.SAEnhancedTrustModel })},
	{"sa_etm_allow_untrusted_guidinfo_rec", "", "TRUE", aBoolean, boolean(func(c *Config) *bool { return &c.SAETMAllowUntrustedGUIDInfoRec })},
	{"sa_etm_allow_guidinfo_rec_by_vf", "", "TRUE", aBoolean, boolean(func(c *Config) *bool { return &c.SAETMAllowGUIDInfoRecByVF })},
	{"sa_etm_allow_untrusted_proxy_requests", "", "TRUE", aBoolean, boolean(func(c *Config) *bool { return &c.SAETMAllowUntrustedProxyRequests })},
	{"sa_etm_max_num_mcgs", "", "0", aCount, number(maxCount, func(c *Config, n uint64) { c.SAETMMaxNumMCGs = uint32(n) })},
	{"sa_etm_max_num_srvcs", "", "0", aCount, number(maxCount, func(c *Config, n uint64) { c.SAETMMaxNumSrvcs = uint32(n) })},
	{"sa_etm_max_num_event_subs", "", "0", aCount, number(maxCount, func(c *Config, n uint64) { c.SAETMMaxNumEventSubs = uint32(n) })},
	{"sa_check_sgid_spoofing", "", "TRUE", aBoolean, boolean(func(c *Config) *bool { return &c.SACheckSGIDSpoofing })},
}

const (
	aBoolean = "TRUE or FALSE"
	aCount   = "a number from 0 (unlimited) to 4294967295"
	aPath    = "the absolute path of a file of mode 0600 that has the key, or (null)"

	maxCount = 1<<32 - 1
)

// noValue is how a file says that an option has none.
const noValue = "(null)"

func number(limit uint64, set func(*Config, uint64)) func(*Config, string) bool {
	return func(c *Config, value string) bool {
		n, ok := parseNumber(value)
		set(c, n)
		return ok && n <= limit
	}
}

// boolean takes TRUE and FALSE alone: OpenSM takes all else, "true" included, for FALSE.
func boolean(at func(*Config) *bool) func(*Config, string) bool {
	return func(c *Config, value string) bool {
		*at(c) = value == "TRUE"
		return value == "TRUE" || value == "FALSE"
	}
}

func keyFile(name KeyName) func(*Config, string) bool {
	return func(c *Config, value string) bool {
		switch n, isNumber := parseNumber(value); {
		case value == noValue, isNumber && n == 0: // as opensm's template has m_key
			delete(c.KeyFiles, name)
			return true
		case strings.HasPrefix(value, "/"):
			c.KeyFiles[name] = value
			return true
		}
		return false
	}
}

// parseNumber reads a number in decimal or behind 0x. A number that begins with another 0 is octal for
// OpenSM and decimal for its readers, so there is none.
func parseNumber(s string) (uint64, bool) {
	base := 10
	if rest, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		s, base = rest, 16
	} else if len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	if strings.ContainsAny(s, "+-_") {
		return 0, false
	}
	n, err := strconv.ParseUint(s, base, 64)
	return n, err == nil
}
