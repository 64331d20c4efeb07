package conf

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"errors"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// Path is the file's usual place.
const Path = "/etc/ironwarp/fabric.conf"

// Options are what fabric.conf says besides the keys, in the order of docs/fabric.md, which has their
// meaning and defaults.
type Options struct {
	MKeyProtection  uint8  // 0 to 3; with MKeyPerPort 2 or 3
	MKeyLeasePeriod uint16 // seconds; 0: the lease does not end
	MKeyLookup      bool   // TRUE where there is an m_key
	MKeyPerPort     bool

	SMPriority           uint8 // 0 to 15
	SMInfoPollingTimeout time.Duration
	PollingRetryNumber   int

	SAEnhancedTrustModel             bool
	SAETMAllowUntrustedGUIDInfoRec   bool
	SAETMAllowGUIDInfoRecByVF        bool
	SAETMAllowUntrustedProxyRequests bool
	SAETMMaxNumMCGs                  uint32 // of one port or vport; 0: unlimited
	SAETMMaxNumSrvcs                 uint32 // likewise
	SAETMMaxNumEventSubs             uint32 // likewise
	SACheckSGIDSpoofing              bool
}

// Config is a fabric.conf and its keys.
type Config struct {
	Options
	File     string // the file's path; "" if there is none
	Keys     Keys
	KeyFiles map[KeyName]string
}

// Default returns the options of a file without lines.
func Default() *Config {
	c := &Config{KeyFiles: map[KeyName]string{}}
	for _, o := range options {
		o.set(c, o.def)
	}
	return c
}

// Load reads fabric.conf and the files of its keys. A file that does not exist is one without lines. It
// fails with each [Error] of the file, with [ErrKey] and with auth.ErrSecretFile for files of keys that
// are refused, and with the file system's errors.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the fabric's options: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the fabric's options: %w", err)
	}
	c, err := Parse(path, text)
	if err != nil {
		return nil, err
	}
	if err := c.loadKeys(); err != nil {
		return nil, err
	}
	return c, nil
}

// settle applies what one option says of others.
func (c *Config) settle(line func(name string) int) (name, fault string) {
	_, hasKey := c.KeyFiles[MKey]
	switch {
	case c.MKeyPerPort:
		// UFM forces these as well: a key of each port protects nothing that is shown to everybody, and the
		// manager has to know which port it talks to.
		c.MKeyProtection = max(c.MKeyProtection, 2)
		c.MKeyLookup = true
	case hasKey && !c.MKeyLookup && line("m_key_lookup") > 0:
		return "m_key_lookup", "m_key_lookup has to be TRUE where there is an m_key: a port that keeps an older key could not be managed any more"
	case hasKey:
		c.MKeyLookup = true
	}
	return "", ""
}

// PortKey returns the M_Key that the configuration gives to a port.
func (c *Config) PortKey(port mad.GUID) mad.Key {
	if c.MKeyPerPort {
		return keyOf(c.base(), port)
	}
	return c.Keys.M()
}

// HasMKey reports whether ports have a key.
func (c *Config) HasMKey() bool { return c.MKeyPerPort || c.Keys.M() != 0 }

// base is the key that the keys of ports are derived from. Without an m_key it is 0x1, as in UFM.
func (c *Config) base() mad.Key {
	if k := c.Keys.M(); k != 0 {
		return k
	}
	return publicBase
}

// Insecure returns what is insecure in the configuration, one sentence each, for the log and for
// `ironwarp security audit`.
func (c *Config) Insecure() []string {
	var lines []string
	add := func(line string) { lines = append(lines, line) }
	switch {
	case c.MKeyPerPort && c.base() == publicBase:
		add("m_key_per_port: the keys of all ports come from the m_key 0x1, which is in the manual, so everybody can compute them: set m_key to a random key")
	case c.Keys.M() == publicBase:
		add("m_key: the key is 0x1, which everybody tries first: make a random one")
	}
	if c.MKeyProtection == 0 && c.Keys.M() != 0 {
		add("m_key_protection 0: the M_Key is shown to every manager that asks for it: set m_key_protection to 2")
	}
	for _, k := range []struct {
		name KeyName
		key  mad.Key
	}{{SMKey, c.Keys.SM()}, {SAKey, c.Keys.SA()}} {
		if k.key == publicBase {
			add(string(k.name) + ": the key is OpenSM's default, 0x1, which everybody knows: make a random one")
		}
	}
	return lines
}
