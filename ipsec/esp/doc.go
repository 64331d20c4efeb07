// Package esp knows the two that can do ESP beside a charon, and what each can:
// the kernel, and strongSwan's plugin kernel-libipsec in user space.
//
// It decides nothing: the guard, the profiles and the manager read from Plane.Offers
// what they may ask for. ProbeKernel says whether this kernel has ESP.
//
// In reading order: plane.go, probe_linux.go.
package esp
