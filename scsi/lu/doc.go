// Package lu is SCSI logical units: disks on a Medium, as SPC-4 and SBC-3 describe them (in Seagate's
// SCSI Commands Reference Manual, 100293068). It has the task set, unit attentions, reservations and
// the commands; it knows no transport.
//
// A command goes through Prepare, which reads its CDB, Begin, by which it is in the task set in its
// turn, and Execute, when its data have come. Reads and writes of the medium run in parallel; those
// that read, look and write (COMPARE AND WRITE, ORWRITE) have their range for themselves, whichever
// path the others come by, and an ORDERED command the unit. Changes of reservations come one after
// the other; nothing else waits for their file. EXTENDED COPY reads and writes by commands of the
// same initiator port, and SANITIZE goes on by itself until Unit.Close.
package lu
