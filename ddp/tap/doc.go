// Package tap shows what the streams of a device carry, in clear, to those who watch: FPDUs with MPA's markers and CRC
// (RFC 5044 section 4.1), or DDP chunks of SCTP (RFC 5043 section 5.2), as they are framed and once they are verified. While
// nobody watches, a stream pays one atomic load per segment.
package tap
