//go:build !weakened

package conf

import "github.com/ironwarp/ironwarp/fabric/mad"

// The check of docs/security.md. weakened.go has it with a switch.

// With m_key_per_port the key of one port opens no other.
func keyOf(base mad.Key, port mad.GUID) mad.Key { return portKey(base, port) }
