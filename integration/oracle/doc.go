// Package oracle checks what the stack puts on the wire by tshark, whose iWARP was not
// written here.
//
// Two queue pairs do every operation over a real TCP connection that is recorded as it
// is written. The record becomes a capture, cut into TCP segments in several ways, and
// tshark must find the intended messages in it, and nothing to complain about. Over
// SCTP in UDP a relay records the packets of an association with several streams.
package oracle
