package esp

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Plane says who transforms packets to ESP.
type Plane uint8

const (
	// Auto leaves the choice to what is found: strongSwan's loaded
	// plugins, or a probe of the kernel.
	Auto Plane = iota
	// Kernel is the kernel's ESP, with XFRM states and policies.
	Kernel
	// Userland is strongSwan's plugin kernel-libipsec: ESP in the charon
	// process behind a tun device, in UDP on port 4500, tunnel mode.
	Userland
)

func (d Plane) String() string {
	switch d {
	case Kernel:
		return "kernel ESP"
	case Userland:
		return "userland ESP"
	}
	return "auto"
}

// MarshalJSON writes the data plane as its name. It does not fail.
func (d Plane) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// ParsePlane reads "auto", "kernel" or "userland"; an empty string is auto. It fails at
// any other.
func ParsePlane(s string) (Plane, error) {
	switch s {
	case "", "auto":
		return Auto, nil
	case "kernel", Kernel.String():
		return Kernel, nil
	case "userland", Userland.String():
		return Userland, nil
	}
	return 0, fmt.Errorf("data plane %q: want auto, kernel or userland", s)
}

// Plugin is the one of strongSwan that is userland ESP.
const Plugin = "kernel-libipsec"

// ChildPriority is the XFRM priority of the policies of our children: charon is given
// it for those of kernel ESP. The smaller number wins, and it is better than anything
// that strongSwan computes by itself (its best, a bypass policy with full selectors,
// is above 60,000).
const ChildPriority = 1000

// ErrCannot means that the data plane lacks a mode or an algorithm.
var ErrCannot = errors.New("the data plane cannot do it")

// Offer is what a data plane can do.
type Offer struct {
	Transport bool // transport mode
	ESN       bool // extended sequence numbers
	Kernel    bool // the algorithms that only the kernel has
	UDP       bool // ESP in UDP is the only one
	Priority  int  // that charon has to give to its policies; 0: it has none in the kernel
	// HoldsSAs: the kernel has the SAs. Who flushes its policies has taken the SAs'
	// policies as well, and what a killed charon leaves stays.
	HoldsSAs bool
}

// Offers returns what charon may be asked for. While the data plane is not known it is
// what either can do.
func (d Plane) Offers() Offer {
	switch d {
	case Kernel:
		return Offer{Transport: true, ESN: true, Kernel: true, Priority: ChildPriority, HoldsSAs: true}
	case Userland:
		return Offer{UDP: true}
	}
	return Offer{Transport: true, UDP: true}
}
