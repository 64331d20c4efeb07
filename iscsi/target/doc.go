// Package target is an iSCSI target: it accepts connections, lets initiators log in, and has their
// commands carried out by the logical units of package scsi/lu. What a connection runs on is an
// iscsi.Datamover: those of package iscsi/tcp, and of package iser.
//
// A session over TCP has up to four connections, and recovers from errors as far as its ErrorRecoveryLevel
// goes (RFC 7143 section 7.1.5). At level 0, and over iSER, what an initiator breaks ends its session, and it
// logs in again; a connection that fails otherwise takes its tasks along, and the session goes on with the others.
package target
