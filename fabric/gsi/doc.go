// Package gsi carries management datagrams of a fabric between two hosts: one MAD with the GRH before it (IBTA
// volume 1, sections 8.3 and 13.4.2) in each RDMAP Send of an RDMA stream, which runs inside ESP as every other. The stream
// also proves who is at its other end, so nothing that a datagram says of its sender has to be believed.
//
// A datagram may be lost, as on InfiniBand: when it comes faster than its receiver deals with it, it is dropped and counted, and the
// stream goes on. Who wants an answer asks again.
package gsi
