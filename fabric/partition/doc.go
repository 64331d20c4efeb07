// Package partition has the partitions of a host: who is a member, and which labels may use them.
//
// A partition is a set of hosts whose streams are kept apart from those of other partitions, by its P_Key in InfiniBand
// and by a link port of its own, with SAs of its label, here. It has a Table, which the configuration makes; a Snapshot is
// a table and the policy for it, and a Published is the snapshot that is in force. The RNIC asks it about each queue pair
// and each request (verbs.Partitions). Who publishes another one has the RNIC look at its queue pairs again afterwards, in
// that order.
//
// The package knows neither sockets nor verbs, and takes no decision about labels itself: that is package policy's.
package partition
