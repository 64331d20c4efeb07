// Package verbs is the RNIC interface (RFC 5042 section 2): devices, protection
// domains, memory regions and windows, queue pairs, shared receive queues and
// completion queues, and the Privileged Resource Manager that every allocation
// passes through.
//
// A Device is one userspace RNIC. Its consumers are ULPs, each a principal
// with a quota. A ULP allocates protection domains and completion queues,
// registers memory, and makes queue pairs that a connection manager (Dial,
// Listen) joins to a peer's. Work is posted to a queue pair and its end is
// learnt from completion queues, by polling, waiting or a handler. What happens
// besides is told by the device's events.
//
// Streams go over MPA on TCP, or over SCTP, the kernel's or in UDP: the
// transport.Config of Dial and Listen says which, and nothing else depends on it.
// Over SCTP the streams of a ULP to one peer share an association, where their trust
// model lets them share.
package verbs
