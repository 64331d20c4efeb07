// Package sctpadapt adapts DDP to SCTP (RFC 5043, with the enhanced
// establishment of RFC 6581): each pair of SCTP streams with one number carries
// a DDP stream, whose segments travel as unordered DATA chunks with a number of
// their own and may be placed in whatever order they come.
//
// A Mux serves one association: it starts DDP Stream Sessions (Initiate), offers
// those that the peer wants to start (Accept) and hands chunks to their streams.
// A Stream is a ddp.LLP. Below is an assoc.Association, the kernel's or one in
// UDP.
//
// MULPDU follows the size of the path's packets. When it shrinks, longer segments
// that have not been sent are cut again. A chunk that conforms to no legal sequence
// ends its session, never the association; a stream whose user takes nothing leaves
// the receive window to the others, within limits.
package sctpadapt
