// Package iscsi is iSCSI (RFC 7143) without I/O and without a clock: the codec of its PDUs and of
// its text, the table of keys and how each is negotiated, the login as a target sees it, the
// numbering of commands and data, and what a target asks an initiator for.
//
// How PDUs and data move is behind the interface Datamover, in the words of RFC 5047: package
// iscsi/tcp moves them over TCP. Who logs in, and what commands do, is not here either: package
// iscsi/target puts the parts together.
package iscsi
