// Package siw runs the conformance suite between package verbs and Linux' soft-iWARP
// (siw). It runs where siw is: in the virtual machine of package vm, with siw in one
// network namespace and this process in another.
//
// The other end of each stream is the agent, a C program on librdmacm and libibverbs,
// which Build compiles. It takes commands on its standard input, one per line, and
// answers each with a line:
//
//	ok [RESULT]...
//	no REASON
//
// The commands are described where they are carried out, in agent/*.c. Those that store
// or load memory are followed by its bytes. Between the answers there are lines with
// events, which begin with a plus sign:
//
//	+wc CONN ID KIND BYTES STATUS TEXT   a completion, STATUS of libibverbs
//	+cm CONN EVENT STATUS                an event of librdmacm
//	+async EVENT                         an asynchronous event of the device
//	+end CONN LOST                       the stream is over and all but LOST
//	                                     completions have been told
package siw
