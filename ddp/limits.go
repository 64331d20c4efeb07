package ddp

const (
	// MaxReorder is the most segments that a segment may be ahead of the one
	// that is due: DDP-SSNs have 16 bits, so with more in flight a late number
	// could not be distinguished from an early one (RFC 5043 section 10). What an LLP
	// holds per segment is some 100 bytes, or 300 for a request.
	MaxReorder = 1<<15 - 1

	// MaxKept is the most that a Placer asks to be kept of a segment that is
	// ahead of its turn, in bytes: the longest request or Terminate with its
	// header. What is longer is not one of ours.
	MaxKept = UntaggedHeaderLen + 128

	// pageLen is the number of segments that a Reorder makes room for at a time:
	// some 2 KiB. Pages are addressed by 8 bytes each.
	pageLen = 32

	// numbers is how many DDP-SSNs there are.
	numbers = 1 << 16

	// keptReorder is the number of segments that a Reorder keeps room for when
	// nothing is held any more: two FPDU batches of a fast sender.
	keptReorder = 512
)
