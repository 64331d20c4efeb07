package iscsi

const (
	// MaxText is how many bytes of key=value text one negotiation may have: what RFC 7143
	// section 6.1 demands that a node can receive, twice, for initiators that send all they know.
	MaxText = 16 << 10

	// maxKeys is how many pairs one negotiation may have: three times the keys that there are.
	maxKeys = 128

	// maxValue is the longest value that is taken, in bytes: a CHAP response or challenge of
	// 1024 bytes (RFC 7143 section 12.1.3) in hexadecimal. All others end at maxSimple, and
	// names at MaxName (sections 6.1 and 4.2.7.1).
	maxValue  = 2 + 2*1024
	maxSimple = 255
	maxLabel  = 63

	// MaxName is the longest iSCSI name in bytes (RFC 7143 section 4.2.7.1).
	MaxName = 223

	// MaxLoginExchanges is how many Login Requests a login may take. RFC 7143 section 6.2 asks
	// for at least six; mutual CHAP with an initiator that sends one key at a time takes twelve.
	MaxLoginExchanges = 32

	// LoginDataSegment is MaxRecvDataSegmentLength during login (RFC 7143 section 6.3), and the
	// default of it afterwards (section 13.12).
	LoginDataSegment = 8192

	// unexpectedUnsaid is how many unexpected PDUs an initiator takes that does not declare it. RFC
	// 7145 section 6.7 has no limit then; Linux' initiator has receives for two.
	unexpectedUnsaid = 2

	// MaxTime2Wait is the longest DefaultTime2Wait in seconds after which anything is retained of a
	// connection that has failed. The initiator may ask for an hour, and it adds to DefaultTime2Retain.
	MaxTime2Wait = 20

	// maxWindow is the most commands that a Window lets an initiator have ahead.
	maxWindow = 1 << 12
)
