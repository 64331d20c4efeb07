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
// A Device and its methods are the privileged control interface of RFC 5042 section
// 2.3.1: whoever has one decides on limits, trust and the end of streams. A ULP is
// what a consumer gets. By it the consumer allocates on its own account and reaches
// its own objects; whatever could touch others passes the Privileged Resource
// Manager (section 3). A ULP that is not privileged can't waive what others depend
// on: its idle streams are ended when streams run short, whatever its trust model
// says. Section 2.3.3's mapping of STags to any memory is not for ULPs of either
// kind: each registers memory that no other one has registered (section 7.3). A ULP
// brings its own transport.Config, Protector included, so it is for code of this
// process. Another process is served by a privileged one that makes these calls on
// a ULP in its name.
//
// Streams go over MPA on TCP, or over SCTP, the kernel's or in UDP: the
// transport.Config of Dial and Listen says which, and nothing else depends on it.
// Over SCTP the streams of a ULP to one peer share an association, where their trust
// model lets them share.
package verbs
