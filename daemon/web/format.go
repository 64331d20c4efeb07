package web

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// size writes a number of bytes for people: 3 significant digits, binary units.
func size(v float64) string {
	const units = "KMGTPE"
	if v < 1024 {
		return fmt.Sprintf("%.0f B", v)
	}
	e := min(int(math.Log2(v)/10), len(units))
	v /= math.Pow(1024, float64(e))
	if v >= 999.5 && e < len(units) {
		v, e = v/1024, e+1
	}
	return fmt.Sprintf("%.3g %ciB", v, units[e-1])
}

// rate writes a number of bytes per second for people.
func rate(v float64) string {
	if v < 0.5 {
		return "-"
	}
	return size(v) + "/s"
}

// perSecond writes a number of operations per second for people.
func perSecond(v float64) string {
	switch {
	case v < 0.05:
		return "-"
	case v < 10:
		return fmt.Sprintf("%.1f/s", v)
	case v < 100_000:
		return fmt.Sprintf("%.0f/s", v)
	}
	return fmt.Sprintf("%.0fk/s", v/1000)
}

// limitsText writes the limits of an export's I/O for people, "" if it has none.
func limitsText(q api.QoS) string {
	var parts []string
	add := func(limit int64, text string) {
		if limit > 0 {
			parts = append(parts, text)
		}
	}
	add(q.IOPS, fmt.Sprintf("%d IOPS", q.IOPS))
	add(q.ReadIOPS, fmt.Sprintf("%d reads/s", q.ReadIOPS))
	add(q.WriteIOPS, fmt.Sprintf("%d writes/s", q.WriteIOPS))
	add(q.Bandwidth, rate(float64(q.Bandwidth)))
	add(q.ReadBandwidth, "read "+rate(float64(q.ReadBandwidth)))
	add(q.WriteBandwidth, "write "+rate(float64(q.WriteBandwidth)))
	return strings.Join(parts, ", ")
}

// span writes a number of seconds in its two largest units.
func span(seconds float64) string {
	if seconds < 0 || seconds > math.MaxInt32 {
		return "-"
	}
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %02d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d d %02d h", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// latency writes what something takes, in seconds.
func latency(seconds float64) string {
	switch {
	case seconds <= 0:
		return "-"
	case seconds < 1e-3:
		return fmt.Sprintf("%.0f µs", seconds*1e6)
	case seconds < 1:
		return fmt.Sprintf("%.3g ms", seconds*1e3)
	}
	return fmt.Sprintf("%.3g s", seconds)
}
