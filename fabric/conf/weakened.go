//go:build weakened

package conf

import (
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/internal/checks"
)

func keyOf(base mad.Key, port mad.GUID) mad.Key {
	if !checks.On(checks.MKeyPerPort) {
		return base
	}
	return portKey(base, port)
}
