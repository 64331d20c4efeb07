package driver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// candidates are the hosts where a volume may be made, the preferred ones first: the one that is named, that of the source, or
// all whose topology is among the requisite ones. It fails with RESOURCE_EXHAUSTED where there is none.
func (c *Controller) candidates(named, ofSource string, r *csi.TopologyRequirement) ([]Host, error) {
	if named != "" && ofSource != "" && named != ofSource {
		return nil, invalid("the source is on host %s, and so would be what begins with its contents, not on %s", ofSource, named)
	}
	if ofSource != "" {
		named = ofSource
	}
	hosts := c.hosts
	if named != "" {
		h, ok := c.host(named)
		if !ok {
			return nil, invalid("host %s is none of this controller's (--host)", named)
		}
		hosts = []Host{h}
	}
	var fit []Host
	for _, t := range slices.Concat(r.GetPreferred(), r.GetRequisite()) {
		for _, h := range hosts {
			if h.reachedFrom(t) && !slices.ContainsFunc(fit, func(f Host) bool { return f.Name == h.Name }) {
				fit = append(fit, h)
			}
		}
	}
	if len(r.GetPreferred())+len(r.GetRequisite()) == 0 {
		fit = hosts
	}
	if len(fit) == 0 {
		return nil, status.Error(codes.ResourceExhausted, "no storage host is within the topology that the volume must be accessible from")
	}
	return fit, nil
}

// reachedFrom reports whether nodes of a topology may use the host's volumes.
func (h Host) reachedFrom(t *csi.Topology) bool {
	for key, value := range h.Topology {
		if t.GetSegments()[key] != value {
			return false
		}
	}
	return true
}

// ParseTopology reads "KEY=VALUE,...", "" for none. The keys get this driver's prefix unless they have one, as the specification
// wants segments of a driver to have. It fails for anything else; the error is the reason.
func ParseTopology(s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	t := make(map[string]string)
	for pair := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(pair, "=")
		prefix, name, prefixed := strings.Cut(key, "/")
		if !prefixed {
			prefix, name = "topology."+Name, key
		}
		if !ok || !isName(prefix, maxID) || !isName(name, maxLabel) || !isName(value, maxLabel) {
			return nil, fmt.Errorf("topology %q: KEY=VALUE was expected, with letters, digits, dots, dashes and underscores", pair)
		}
		t[prefix+"/"+name] = value
	}
	if len(t) > maxTopology {
		return nil, fmt.Errorf("%d keys of topology; %d are allowed", len(t), maxTopology)
	}
	return t, nil
}
