// Package iser moves iSCSI's PDUs and data over RDMA (RFC 7145): it is the iscsi.Datamover of a target
// on package verbs.
//
// PDUs travel in Sends behind a header of 28 bytes. What an initiator reads is written to its memory
// by RDMA Writes, and what it writes is fetched from there by RDMA Reads; its response is a Send, which
// ends the initiator's STag if the initiator can do that. There are no Data-In PDUs and no R2Ts.
//
// A connection starts up in one of two ways. Accept takes one that is in RDMA mode from the first byte
// on, as Linux' ib_iser and libiscsi have it: the login is Sends, too. Upgrade takes one that has logged
// in over TCP, and goes on with MPA (RFC 7145 section 5.1).
//
// The target gives its peer no right to any of its memory: what it reads goes to memory of its own,
// which nobody looks at before the Read has ended.
package iser
