// Package capture captures what streams carry, in clear, while the wire has ESP: it takes the records of a tap.Tap into a
// bounded ring, and writes them in pcapng as the packets that would have carried them without IPsec. Each FPDU is a TCP
// segment of its own, behind a handshake and the start-up frames (RFC 5044 section 7.1.1), so that a capture that joins late
// is understood, too; each chunk of SCTP is a packet of its own.
//
//	stream --Watch--> Ring --next--> Writer --> the caller
//	        (data path)      (the capture's goroutine)
package capture
