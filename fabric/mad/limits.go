package mad

const (
	// MaxWindow is the most segments that a receiver lets be on their way. Over RDMAP each needs a posted receive of 296 bytes, so
	// 64 cost 19 kB for each transfer, and are 12.8 kB of records in each round trip.
	MaxWindow = 64

	// MaxSend is the most segments that a sender has on their way, whatever the receiver's window: what waits for one host is no more. Linux and
	// IronWarp open windows of 64.
	MaxSend = 256

	// MaxTable is what a receiver may be told to expect at most, in bytes of records: 10,000 services take 1.76 MB, and tables of
	// pairs (paths) grow beyond. It also keeps segment numbers and payload lengths within 32 bits.
	MaxTable = 64 << 20
)
