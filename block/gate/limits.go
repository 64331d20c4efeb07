package gate

import (
	"fmt"
	"math"
	"time"
)

const (
	// MaxRate bounds a limit, in I/Os or bytes a second: a terabyte, which no storage of ours comes to, and whose bursts of MaxBurst
	// are still far from the end of an int64.
	MaxRate = 1 << 40
	// MinBandwidth is the least limit of bytes a second: a sector.
	MinBandwidth = 512
	// MaxBurst bounds for how long a limit's I/O is saved up: an hour.
	MaxBurst = time.Hour
	// DefaultBurst is what an unspecified burst is: a second's worth, so that a guest that flushes once a second is not slowed down
	// below its limit.
	DefaultBurst = time.Second
)

// Limits bound the I/O of a storage: per second, of all its users together. What is 0 is not limited. Flushes, hints and questions for
// holes count as nothing; what trims or writes zeroes counts as a write without bytes.
type Limits struct {
	IOPS, ReadIOPS, WriteIOPS                int64
	Bandwidth, ReadBandwidth, WriteBandwidth int64         // bytes
	Burst                                    time.Duration // for how long it is saved up; 0: DefaultBurst
}

// IsZero reports whether nothing is limited.
func (l Limits) IsZero() bool {
	l.Burst = 0
	return l == Limits{}
}

// Check fails if a limit makes no sense.
func (l Limits) Check() error {
	for _, v := range []struct {
		name string
		n    int64
		lo   int64
	}{
		{"iops", l.IOPS, 1}, {"read_iops", l.ReadIOPS, 1}, {"write_iops", l.WriteIOPS, 1},
		{"bandwidth", l.Bandwidth, MinBandwidth}, {"read_bandwidth", l.ReadBandwidth, MinBandwidth}, {"write_bandwidth", l.WriteBandwidth, MinBandwidth},
	} {
		if v.n != 0 && (v.n < v.lo || v.n > MaxRate) {
			return fmt.Errorf("%s of %d a second; allowed: %d to %d, or 0 for no limit", v.name, v.n, v.lo, int64(MaxRate))
		}
	}
	if l.Burst < 0 || l.Burst > MaxBurst {
		return fmt.Errorf("a burst of %v; allowed: up to %v", l.Burst, MaxBurst)
	}
	return nil
}

// saved is how much of a limit is saved up at most: that of the burst, and at least one I/O's worth.
func saved(perSecond int64, burst time.Duration) int {
	return int(min(max(1, float64(perSecond)*burst.Seconds()), math.MaxInt32))
}
