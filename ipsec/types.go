package ipsec

import (
	"encoding/json"
	"fmt"
)

// DataPlane says who transforms packets to ESP.
type DataPlane uint8

const (
	// DataPlaneAuto leaves the choice to what is found: strongSwan's loaded
	// plugins, or a probe of the kernel.
	DataPlaneAuto DataPlane = iota
	// DataPlaneKernel is the kernel's ESP, with XFRM states and policies.
	DataPlaneKernel
	// DataPlaneUserland is strongSwan's plugin kernel-libipsec: ESP in the charon
	// process behind a tun device, in UDP on port 4500, tunnel mode.
	DataPlaneUserland
)

func (d DataPlane) String() string {
	switch d {
	case DataPlaneKernel:
		return "kernel ESP"
	case DataPlaneUserland:
		return "userland ESP"
	}
	return "auto"
}

// MarshalJSON writes the data plane as its name.
func (d DataPlane) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// ParseDataPlane reads "auto", "kernel" or "userland"; an empty string is auto.
func ParseDataPlane(s string) (DataPlane, error) {
	switch s {
	case "", "auto":
		return DataPlaneAuto, nil
	case "kernel", DataPlaneKernel.String():
		return DataPlaneKernel, nil
	case "userland", DataPlaneUserland.String():
		return DataPlaneUserland, nil
	}
	return 0, fmt.Errorf("data plane %q: want auto, kernel or userland", s)
}
