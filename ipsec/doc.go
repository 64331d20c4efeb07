// Package ipsec protects flows by IPsec ESP as RFC 5042 section 5.4.5 asks of
// an RNIC: with the profile of RFC 3723 as RFC 7146 updates it, between exactly
// these two hosts, failing closed.
//
// strongSwan (charon) speaks IKE; Manager drives it over VICI and implements
// transport.Protector. Per peer and Link, which is a port of TCP, of SCTP or of UDP
// with SCTP in it, three things are kept:
//
//   - the guard: XFRM policies in the kernel that block the port's clear
//     traffic. It is installed before anything else, and stays when this
//     process, charon or an SA goes away. Only RemovePeer takes it down.
//   - two child SAs, NAME-out for flows this host dials (local any port, remote
//     PORT) and NAME-in for flows the peer dials (local PORT, remote any port),
//     or Peer.Children of each, with a block of ports each. Those of SCTP and UDP
//     are NAME-out-sctp, NAME-in-udp and so on. The Standing link of a peer, whose flows other
//     programs dial, has NAME-out-tcpPORT and NAME-in-tcpPORT, which are up at all times.
//   - a keeper that brings a lost child back: at once when a flow has data
//     waiting, on demand when all are idle. A lost child pauses the streams and
//     never ends them (RFC 5042 5.4.5, RFC 7146 section 3).
//
// A flow is admitted only if an INSTALLED child of the peer covers its
// addresses, ports and protocol, ends at the peer itself and not at a gateway
// (unless Peer.Gateway names it), and IKE has authenticated the peer as the
// identity that is configured.
//
// A profile says how IKE and ESP are done (package profile). Hosts authenticate each other
// by a pre-shared key or by certificates (package auth); package pki makes
// certificates for a lab. A negotiation.Error says what a failed attempt means and what
// to do.
//
// What can be understood without the manager is in packages below, which know nothing
// of it: guard, which works without one, pad, which says who the peers are and whether an
// SA is theirs, ike, which has strongSwan do things, and what these stand on.
package ipsec
