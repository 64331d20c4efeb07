// Package sctpadapt adapts DDP to SCTP (RFC 5043, with the enhanced
// establishment of RFC 6581): each pair of SCTP streams with one number carries
// a DDP stream, whose segments travel as unordered DATA chunks with a number of
// their own and may be placed in whatever order they come.
//
// A Mux serves one association: it starts DDP Stream Sessions (Initiate), offers
// those that the peer wants to start (Accept) and hands chunks to their streams.
// A Stream is a ddp.LLP. What is below is an assoc.Association, of
// the kernel or in UDP.
//
// MULPDU is what a packet takes, as of now. Segments that were made for a longer
// one, and have not gone, are cut again. A chunk that no legal sequence has ends its
// session, never the association; a stream whose user takes nothing leaves the
// receive window to the others, within limits.
package sctpadapt
