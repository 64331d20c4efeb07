//go:build weakened

package agent

import (
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/internal/checks"
)

func isManager(from Requester) bool { return from.Manager || !checks.On(checks.ManagerIdentity) }
func matches(port, request mad.Key) bool {
	return port == 0 || port.Equal(request) || !checks.On(checks.MKeyOfPort)
}
func getNeedsKey(protect uint8) bool { return protect >= 2 && checks.On(checks.MKeyOfGet) }
func showsKey(protect uint8, matching bool) bool {
	return matching || protect == 0 || !checks.On(checks.MKeyShown)
}
func withinConfiguration(pkey, allowed uint16) bool {
	return pkeyWithin(pkey, allowed) || !checks.On(checks.AgentPKeys)
}
