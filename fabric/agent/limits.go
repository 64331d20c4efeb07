package agent

import "time"

const (
	// trapInterval is between two sendings of a trap that no manager has repressed, and maxTraps how often it
	// is sent: a minute after a violation, no manager that is there has missed it. One trap at a time is under
	// way, whatever happens meanwhile, since who causes violations is not to cause traffic.
	trapInterval = 10 * time.Second
	maxTraps     = 6

	// maxViolations is where M_KeyViolations saturates (IBTA 14.2.5.6).
	maxViolations = 0xffff

	// maxPKeys is the greatest table that PartitionCap can describe in whole blocks.
	maxPKeys = 0x8000
	// maxGUIDs is the greatest table that GUIDCap can describe.
	maxGUIDs = 255

	// maxSaved in bytes is a state with maxPKeys partitions.
	maxSaved = 1 << 20
)
