package lu

const (
	// MaxTransfer is the most bytes that a command moves: what one buffer holds.
	MaxTransfer = 1 << 20

	// maxWriteSame is the most bytes of a WRITE SAME: written a buffer at a time, a fast disk
	// takes a tenth of a second.
	maxWriteSame = 64 << 20

	// maxUnmap and maxUnmapRanges bound one UNMAP: together they fit into a parameter list of a
	// page, and no single call of the storage takes long.
	maxUnmap       = 512 << 20
	maxUnmapRanges = 64

	// maxCompare is the most blocks of a COMPARE AND WRITE; the field has a byte.
	maxCompare = 255

	// maxParameters is the longest parameter data in bytes that a command returns or takes: a list
	// of 4,096 units is 32 KiB long.
	maxParameters = 64 << 10

	// maxAttentions is how many unit attentions a nexus may have waiting. Beyond it they are one
	// that says all: that the unit was reset.
	maxAttentions = 8

	// maxRegistrations is how many initiator ports may be registered with a unit.
	maxRegistrations = 256

	// maxUnits is how many units a Device has, as many as REPORT LUNS tells in maxParameters.
	maxUnits = 4096
)
