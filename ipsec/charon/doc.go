// Package charon talks to strongSwan's daemon over its control socket (VICI): it has the
// connection, the messages, the lists of SAs and the traffic selectors in them, and says
// in words what is wrong between this host and charon (Error).
//
// It knows no peers and decides nothing. What charon sends is taken for hostile input,
// since it repeats what peers have sent it: a packet is looked through before it is
// decoded, its length, depth and number of SAs are bounded, and what is not understood
// is an error or covers nothing. Every call ends by its context; one that was cut
// short leaves the connection closed. No event is lost, and none that comes while
// events are being registered for blocks the connection.
//
// In reading order: conn.go, frame.go, message.go, list.go, sa.go, selector.go, errors.go.
package charon
