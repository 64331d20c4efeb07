// Package target is an iSCSI target: it accepts connections, lets initiators log in, and has their
// commands carried out by the logical units of package scsi/lu. What a connection runs on is an
// iscsi.Datamover; this package serves those of package iscsi/tcp.
//
// A session has one connection, and ErrorRecoveryLevel is 0: whatever is wrong with a connection
// ends its session, and its initiator logs in again (RFC 7143 section 7.1.4.4).
package target
