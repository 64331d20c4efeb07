// Package guard keeps a link's clear packets on this host, by what it puts into the
// kernel and leaves there: they are blocked whatever becomes of this process, of charon
// or of an SA. It knows nothing of IKE, and needs nobody who runs.
//
// It promises of a Spec that is in place (Install, Reconcile) and that Holes and Probe
// find sound:
//
//   - no packet of the link's port leaves in clear, or is taken in clear, but through
//     ESP (RFC 5042 section 5.4.5);
//   - no ICMP message leaves that quotes a packet which ESP has carried;
//   - Remove takes it down only when the kernel has nothing more to send by the link,
//     and says so by a *HeldError otherwise.
//
// It needs CAP_NET_ADMIN and a kernel with XFRM. Whoever has these privileges as well
// can take it away: Changes reports it, Holes says what is missing and what settings
// of others open a way, and Reconcile puts it back. Where the kernel has no nf_tables,
// ICMP errors to the peer are stopped whatever they quote. The host's other ports are
// left as they are.
//
// Blocks are the other filter of this package: for a time they drop what a peer sends
// for its links, ESP or not, and the kernel ends them by itself (RFC 5042 6.4.1).
//
// In reading order:
//
//	guard.go                            Spec, Policy, Hole: the words
//	install_linux.go                    Install, Remove, List, Reconcile
//	xfrmpolicy_linux.go                 XFRM policies as messages of netlink
//	kernel_linux.go, routerules_linux.go  those of a guard; routing rules of userland ESP
//	planes_linux.go, kernelesp_linux.go,
//	userlandesp_linux.go, tunmark_linux.go
//	                                    what may pass, by who does ESP
//	quoterules_linux.go, quoteinstall_linux.go,
//	quoteread_linux.go, quotewrite_linux.go
//	                                    ICMP that quotes the link
//	holes_linux.go, probe_linux.go      Holes; Probe, the self-test
//	sockets_linux.go                    what the kernel has to send when a guard goes
//	children_linux.go                   ESP states that a killed charon has left
//	changes_linux.go                    who else has changed something
//	block.go, blocktable_linux.go       blocks
//	nftables_linux.go                   nf_tables, for quotes and blocks
package guard
