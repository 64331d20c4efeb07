// Package chaos tests the whole product: two hosts with a strongSwan and an `ironwarp
// daemon` each, a disk of one attached to the other, fio writing and verifying it, and
// a capture of the wire between them, while SAs are deleted and rekeyed, processes
// killed, links cut, secrets changed.
//
// Every test ends with the same three questions (was there an I/O error, are the
// streams the same, did a packet cross the wire in clear) and with a control run: with
// the guard overridden and strongSwan dead, the same check has to find clear packets.
package chaos
