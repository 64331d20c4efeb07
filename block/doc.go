// Package block is the vocabulary of block storage: operations, their flags and
// completions, the geometry of a disk and its identity. It has no I/O of its own.
//
// It has two interfaces. A Device has its own buffers: front ends serve it (package
// nbd), and a client of package rnbd, whose buffers are registered once and for all, is
// one. A Storage works on its caller's buffers: files and block devices are one
// (package block/backing), and a server of package rnbd, where data arrives in the
// server's buffers, exports it.
package block
