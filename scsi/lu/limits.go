package lu

const (
	// MaxTransfer is the most bytes that a command moves: what one buffer holds.
	MaxTransfer = 1 << 20

	// maxPiece is how many bytes VERIFY and WRITE SAME handle at a time. They have memory of their
	// own for it, however many there are.
	maxPiece = 64 << 10

	// maxWriteSame is the most bytes of a WRITE SAME: written a piece at a time, a fast disk takes
	// some hundredths of a second.
	maxWriteSame = 16 << 20

	// maxUnmap and maxUnmapRanges bound one UNMAP: together they fit into a parameter list of a
	// page, and no single call of the storage takes long.
	maxUnmap       = 512 << 20
	maxUnmapRanges = 64

	// maxParameters is the longest parameter data in bytes that a command returns or takes: a list
	// of 4,096 units is 32 KiB long.
	maxParameters = 64 << 10

	// maxAttentions is how many unit attentions a nexus may have waiting. Beyond it they are one
	// that says all: that the unit was reset.
	maxAttentions = 8

	// maxRegistrations is how many initiator ports may be registered with a unit.
	maxRegistrations = 256

	// What one EXTENDED COPY may have. Hosts copy by one or two units and some segments.
	maxCopyTargets  = 16
	maxCopySegments = 64

	// maxCopies is how many copies an initiator port may have under way in a unit, and maxPortCopies in all
	// of them: each has a buffer of MaxTransfer bytes. maxKnownCopies is of how many it is known how they
	// ended.
	maxCopies      = 4
	maxPortCopies  = 8
	maxKnownCopies = 8

	// maxUnits is how many units a Device has, as many as REPORT LUNS tells in maxParameters.
	maxUnits = 4096
)
