// Package history tests what a remote disk promises about its data. Clients write
// tagged sectors through attached disks while NBD clients, daemons, paths, files and
// hosts are killed, exchanged and brought back. Requests and answers are recorded, and
// porcupine searches for an order in which a single disk could have carried them out.
// There has to be one for each sector:
//
//   - A read returns what was written last.
//   - A write whose answer never came may have been carried out, once or more, until
//     its connection's successor does anything; from then on it must not.
//   - After a power cut what was acknowledged before a flush that succeeded is there,
//     and what was acknowledged with FUA. Of the rest any may be lost; then no flush
//     of the same attachment says that all is well.
//
// Besides, nothing may fail without a cause.
//
// Each scene names the check that prevents its fault. Built with the tag "weakened" the
// scene runs with that check switched off, and the checker has to find the fault.
//
//	go test ./integration/history
//	go test -tags weakened ./integration/history
package history
