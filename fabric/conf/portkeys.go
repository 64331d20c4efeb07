package conf

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// ErrPortKeys means that the table of ports' keys is damaged or full.
var ErrPortKeys = errors.New("table of M_Keys refused")

// PortKeys are the M_Keys that a manager has last set at ports, for m_key_lookup: a port that was away
// when the keys changed is still opened by the one that it has. The file is that of OpenSM's guid2mkey: a
// GUID and a key on each line; with the GUID 0, the m_keys of before, the last one first. A manager whose process or disk fails
// between giving a port its key and recording that knows only by them which key the port has once there is another m_key.
// It is not safe for concurrent use.
type PortKeys struct {
	path string
	keys *map[mad.GUID]mad.Key // behind a pointer, so that package fmt does not write it where it passes over Format
	old  *[]mad.Key            // likewise
}

// Format does not write the keys, whatever the verb.
func (p *PortKeys) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LoadPortKeys reads the table of a file of mode 0600, and an empty one where there is no file. It fails
// with [ErrPortKeys] if a line is not as it should be, with auth.ErrSecretFile if others may read the
// file, and with the file system's error.
func LoadPortKeys(path string) (*PortKeys, error) {
	keys := map[mad.GUID]mad.Key{}
	p := &PortKeys{path: path, keys: &keys, old: &[]mad.Key{}}
	f, err := auth.OpenPrivate(path, "table of M_Keys")
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxPortKeysFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the table of M_Keys: %w", err)
	}
	if len(text) > maxPortKeysFile {
		return nil, fmt.Errorf("%w: %s has more than %d bytes", ErrPortKeys, path, maxPortKeysFile)
	}
	no := 0
	for line := range bytes.Lines(text) {
		no++
		words := strings.Fields(string(line))
		if len(words) == 0 {
			continue
		}
		var numbers [2]uint64
		ok := len(words) == len(numbers)
		for i := 0; ok && i < len(numbers); i++ {
			numbers[i], ok = parseNumber(words[i])
		}
		guid := mad.GUID(numbers[0])
		if ok && guid == 0 && numbers[1] != 0 && len(*p.old) < maxOldKeys {
			*p.old = append(*p.old, mad.Key(numbers[1]))
			continue
		}
		if _, again := keys[guid]; !ok || guid == 0 || again || len(keys) == maxPortKeys {
			return nil, fmt.Errorf("%w: %s:%d: not one GUID and its M_Key; without the file, ports that have an older M_Key have to be given the new one by hand", ErrPortKeys, path, no)
		}
		keys[guid] = mad.Key(numbers[1])
	}
	return p, nil
}

// Key returns the key that was last set at a port, and whether one was.
func (p *PortKeys) Key(port mad.GUID) (mad.Key, bool) { k, ok := (*p.keys)[port]; return k, ok }

// Set records the keys of ports, in the file too. It fails with [ErrPortKeys] if the table is full, and with
// the file system's error; the table is then as it was.
func (p *PortKeys) Set(of map[mad.GUID]mad.Key) error {
	return p.set(of, *p.old)
}

func (p *PortKeys) set(of map[mad.GUID]mad.Key, old []mad.Key) error {
	keys := maps.Clone(*p.keys)
	maps.Copy(keys, of)
	if maps.Equal(keys, *p.keys) && slices.EqualFunc(old, *p.old, mad.Key.Equal) {
		return nil
	}
	if len(keys) > maxPortKeys {
		return fmt.Errorf("%w: it would have %d ports, at most %d are possible; remove %s if most are gone", ErrPortKeys, len(keys), maxPortKeys, p.path)
	}
	var text []byte
	for _, key := range old {
		text = fmt.Appendf(text, "%#016x %#016x\n", 0, uint64(key))
	}
	for _, guid := range slices.SortedFunc(maps.Keys(keys), cmp.Compare) {
		text = fmt.Appendf(text, "%#016x %#016x\n", uint64(guid), uint64(keys[guid]))
	}
	if err := wholefile.Write(p.path, text); err != nil {
		return fmt.Errorf("record the M_Keys of ports: %w", err)
	}
	p.keys, p.old = &keys, &old
	return nil
}

// RotateMKey draws a new m_key and writes it to its file. Before, it records in known the keys that ports have,
// of which each is still opened by that until it has been given the new one. The keys of c stay as they are;
// [Load] reads the new one. It fails as [PortKeys.Set] and [Config.WriteKey] do; the m_key is then the old one.
func (c *Config) RotateMKey(known *PortKeys, ports []mad.GUID) error {
	now := make(map[mad.GUID]mad.Key, len(ports))
	for _, port := range ports {
		if k, ok := known.Key(port); ok {
			now[port] = k
		} else {
			now[port] = c.PortKey(port)
		}
	}
	old := *known.old
	if k := c.Keys.M(); k != 0 && (len(old) == 0 || !k.Equal(old[0])) {
		old = append([]mad.Key{k}, old...)
	}
	if err := known.set(now, old[:min(len(old), maxOldKeys)]); err != nil {
		return err
	}
	return c.WriteKey(MKey, NewKey())
}

// KeyOf returns the M_Key of a port: with m_key_lookup the one that known has for it, else the one that the
// configuration gives it. recorded reports that known has the port, so that the port itself has the key and may
// be shown it. known may be nil.
func (c *Config) KeyOf(port mad.GUID, known *PortKeys) (key mad.Key, recorded bool) {
	if known != nil && c.MKeyLookup {
		if k, ok := known.Key(port); ok {
			return k, true
		}
	}
	return c.PortKey(port), false
}

// Candidates returns the keys that may open a port, the likeliest first. Each that is wrong counts as a
// violation at the port.
func (c *Config) Candidates(port mad.GUID, known *PortKeys) []mad.Key {
	key, _ := c.KeyOf(port, known)
	all := []mad.Key{key, c.PortKey(port)}
	if known != nil && c.MKeyLookup {
		for _, old := range *known.old {
			if c.MKeyPerPort {
				old = keyOf(old, port)
			}
			all = append(all, old)
		}
	}
	var keys []mad.Key
	for _, k := range all {
		if !slices.ContainsFunc(keys, k.Equal) {
			keys = append(keys, k)
		}
	}
	return keys
}
