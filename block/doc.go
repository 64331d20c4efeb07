// Package block is the vocabulary of block storage: operations, their flags and
// completions, what a disk is like, and which disk it is. It has no I/O of its own.
//
// Two seams stand on it. A Device has its own buffers, as those of a remote disk are
// registered once and for all: front ends serve it (package nbd), and a client of
// package rnbd is one. A Storage works on its caller's buffers, as those of an RDMA
// server are where the data has arrived: files and block devices are one (package
// block/backing), and a server of package rnbd exports it.
package block
