package audit

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// management reports who may manage the daemon (R33).
func (v *view) management() string {
	if len(v.c.ULPs) == 0 {
		return "; root and the daemon's user alone"
	}
	return fmt.Sprintf("; root, the daemon's user, and of %s what each may", count(len(v.c.ULPs), "ULP"))
}

// managementWeaknesses are users who may change what the daemon does though they are not
// root, and files and sockets that more users may write to than have to (R33).
func (v *view) managementWeaknesses() []api.Weakness {
	out := append(v.privileged(), v.fabric()...)
	for _, f := range v.Files {
		others := f.Mode.Perm() & 0o022
		switch {
		case f.Foreign && !f.Socket:
			out = append(out, api.Weakness{Setting: f.Path, Effect: fmt.Sprintf("it belongs to user id %d, who may change what it says", f.Owner), Fix: "chown root: " + f.Path})
		case others == 0 || f.Mode&fs.ModeSticky != 0:
		case f.Socket && len(v.c.ULPs) > 0: // the kernel reports who connects
		case f.Socket:
			out = append(out, api.Weakness{Setting: f.Path, Effect: fmt.Sprintf("its mode is %#o, so users connect to it whom no ULP lets in", f.Mode.Perm()), Fix: "chmod 600 " + f.Path})
		default:
			out = append(out, api.Weakness{Setting: f.Path, Effect: fmt.Sprintf("its mode is %#o, so others than root may change what it says", f.Mode.Perm()), Fix: "chmod go-w " + f.Path})
		}
	}
	return out
}

// consumerWeaknesses are consumers who may do what the configuration keeps from others (R1).
func (v *view) consumerWeaknesses() []api.Weakness {
	out := v.privileged()
	if v.Permissive != "" {
		out = append(out, api.Weakness{Setting: "labels: " + v.Permissive, Effect: "the policy of partitions is permissive: a consumer whose label may not use one uses it, and the log says so",
			Fix: "`setenforce 1` when the log has no denial any more that should not be one"})
	}
	return out
}

// fabric is what managers of a fabric may change on this host while its agent is on, and what makes it easier to be taken for one.
func (v *view) fabric() []api.Weakness {
	if v.Fabric == nil {
		return nil
	}
	var out []api.Weakness
	if v.c.Fabric.Agent {
		out = append(out, api.Weakness{Setting: "fabric: agent: true", Effect: fmt.Sprintf("the fabric's managers, %s, change this host's management keys, drain it and restrict its partitions", strings.Join(v.c.Fabric.Managers, ", ")),
			Fix: "fabric: {agent: false}, unless managers have to do that; an m_key with m_key_protection 2 holds up a manager that is not what it should be"})
	}
	for _, line := range v.Fabric.Insecure {
		out = append(out, api.Weakness{Setting: "the fabric's settings", Effect: line, Fix: "docs/fabric.md has the options of fabric.conf and how to make keys; then `ironwarp reload`"})
	}
	return out
}
