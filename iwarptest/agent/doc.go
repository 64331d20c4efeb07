// Package agent has another implementation of RDMA take part in the conformance suite: an RDMA device of Linux, be it an
// adapter or soft-iWARP, on this host or another.
//
// Its end of each stream is a C program on librdmacm and libibverbs, the agent, whose source is in this package: Build
// compiles it, and WriteSource is for a host that has a compiler and no Go. It takes commands on its standard input, one
// per line, and answers each with a line:
//
//	ok [RESULT]...
//	no REASON
//
// The commands are described where they are carried out, in source/*.c. Those that store
// or load memory are followed by its bytes. Between the answers there are lines with
// events, which begin with a plus sign:
//
//	+wc CONN ID KIND BYTES STATUS TEXT   a completion, STATUS of libibverbs
//	+cm CONN EVENT STATUS                an event of librdmacm
//	+async EVENT                         an asynchronous event of the device
//	+end CONN LOST                       the stream is over and all but LOST
//	                                     completions have been told
package agent
