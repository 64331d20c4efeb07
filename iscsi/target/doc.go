// Package target is an iSCSI target: it accepts connections, lets initiators log in, and has their
// commands carried out by the logical units of package scsi/lu. What a connection runs on is an
// iscsi.Datamover; this package serves those of package iscsi/tcp.
//
// A session over TCP has up to four connections, and ErrorRecoveryLevel is 0: what an initiator breaks
// ends its session, and it logs in again (RFC 7143 section 7.1.4.4). A connection that fails otherwise
// takes its tasks along; the session goes on with the others.
package target
