// Package vm runs scripts as root in a virtual machine of its own: Debian's
// kernel under QEMU, emulated, with soft-iWARP (siw), RTRS and RNBD built for it. It needs no
// KVM and takes some ten seconds to boot.
//
// The guest sees the host's file system at the same paths, read-only under an overlay
// in memory, so whatever is installed or built on the host runs in it. It has no
// network except its own namespaces and what Options.Forward gives it.
package vm
