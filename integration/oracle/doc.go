// Package oracle holds what the stack puts on the wire against tshark, which
// knows iWARP from other people's implementations.
//
// Two queue pairs do every operation over a real TCP connection that is
// recorded as it is written. The record becomes a capture, cut into TCP segments
// in several ways, and tshark must find in it the messages that were meant, and
// nothing that it would complain of. Over SCTP in UDP a relay records the packets
// of an association with several streams.
package oracle
