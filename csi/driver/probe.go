package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// What a plugin can be asked for.
const (
	ProbeLive  = "live"  // it answers
	ProbeReady = "ready" // its daemon answers, too
)

// Ask asks the plugin at an endpoint whether it is live or ready, as the kubelet does by way of the plugin's own program. It fails where the
// plugin is not, or does not answer before ctx ends or probeTime has passed. A plugin is live without its daemon, which it could not bring back.
func Ask(ctx context.Context, endpoint, what string) (err error) {
	if what != ProbeLive && what != ProbeReady {
		return fmt.Errorf("a plugin can be asked whether it is %s or %s, not whether it is %q", ProbeLive, ProbeReady, what)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	path := strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix:"), "//")
	c, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	id := csi.NewIdentityClient(c)
	if what == ProbeLive {
		if _, err = id.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}); err != nil {
			return fmt.Errorf("the plugin at %s does not answer: %w", endpoint, err)
		}
		return nil
	}
	out, err := id.Probe(ctx, &csi.ProbeRequest{})
	if err != nil {
		return fmt.Errorf("the plugin at %s does not answer: %w", endpoint, err)
	}
	if !out.GetReady().GetValue() {
		return fmt.Errorf("the daemon of the plugin at %s does not answer: systemctl status ironwarp", endpoint)
	}
	return nil
}
