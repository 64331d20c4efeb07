package charon

import (
	"strconv"

	"github.com/strongswan/govici/vici"
)

// Section builds a VICI message from keys and values: strings, lists of strings
// and sections. Empty values are left out.
func Section(kv ...any) *vici.Message {
	m := vici.NewMessage()
	for i := 0; i+1 < len(kv); i += 2 {
		switch v := kv[i+1].(type) {
		case string:
			if v == "" {
				continue
			}
		case []string:
			if len(v) == 0 {
				continue
			}
		}
		if err := m.Set(kv[i].(string), kv[i+1]); err != nil {
			panic("ipsec: a VICI message of our own: " + err.Error())
		}
	}
	return m
}

// Set sets a value of a message.
func Set(m *vici.Message, key string, value any) {
	if err := m.Set(key, value); err != nil {
		panic("ipsec: a VICI message of our own: " + err.Error())
	}
}

// Str returns a value, "" if there is none.
func Str(m *vici.Message, key string) string {
	s, _ := m.Get(key).(string)
	return s
}

// Num returns a value that is a number, 0 if there is none.
func Num(m *vici.Message, key string) uint64 {
	n, _ := strconv.ParseUint(Str(m, key), 10, 64)
	return n
}

// Uint writes a number as charon reads it.
func Uint(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// List returns a list of values; one value is a list of one.
func List(m *vici.Message, key string) []string {
	switch v := m.Get(key).(type) {
	case []string:
		return v
	case string:
		if v != "" {
			return []string{v}
		}
	}
	return nil
}

// Sub returns a section, an empty one if there is none.
func Sub(m *vici.Message, key string) *vici.Message {
	if s, ok := m.Get(key).(*vici.Message); ok && s != nil {
		return s
	}
	return vici.NewMessage()
}
