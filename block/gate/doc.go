// Package gate stands before a block.Storage. It keeps the storage's I/O within limits of a rate, which may change while it is in
// use: I/O beyond them waits, in two queues, of what reads and of what changes the disk. And it can hold back what changes the disk,
// for the moment in which a snapshot is taken.
//
// An I/O passes at once while there are no limits and nothing is held; that costs one load of a pointer.
package gate
