//go:build weakened

package programs

import (
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func mayUsePort(who local.Caller, peer string, protocol transport.Protocol, port uint16) bool {
	return ownsPort(who, peer, protocol, port) || !checks.On(checks.ProgramPort)
}
func mayListen(who local.Caller) bool { return listens(who) || !checks.On(checks.ProgramPort) }
func mayUsePartition(may func(label, partition string) error, label, partition string) error {
	if !checks.On(checks.ProgramPartition) {
		return nil
	}
	return may(label, partition)
}
func believes(who local.Caller) bool { return who.Privileged || !checks.On(checks.ProgramWitness) }
func endsWithSession() bool          { return checks.On(checks.ProgramEnd) }
func counts(*verbs.ULP) bool         { return checks.On(checks.PeerQuota) }
