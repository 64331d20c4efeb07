package web

import "time"

const (
	// maxConns at the same time. Any user of the host can open them; those without the token give way to the next ones.
	maxConns = 64
	// maxStreams is how many pages may be open with events: a person has a few, and each is a goroutine and a rendering.
	maxStreams = 16
	// headerTime is for a client that connects and says nothing.
	headerTime = 5 * time.Second
	// writeTime is for a client that does not read. A page that is slower is dropped, and connects again.
	writeTime = 5 * time.Second
	// maxHeader is the longest header of a request, in bytes: browsers send one or two thousand.
	maxHeader = 8 << 10
	// DefaultInterval is how often the daemon is asked. Its rates are of the last seconds, so that more often shows nothing new.
	DefaultInterval = time.Second
	// MinInterval keeps a page from being a load: a host with many streams takes some milliseconds to describe.
	MinInterval = 200 * time.Millisecond
	// askTime bounds one question to the daemon, which waits for strongSwan for a while.
	askTime = 10 * time.Second
	// doctorTime bounds one examination of the host, and doctorEvery is how often there is one, while a page is open.
	doctorTime  = time.Minute
	doctorEvery = time.Minute
	// watchAgain is how long to wait before the daemon is asked again for the events of its SAs.
	watchAgain = 2 * time.Second
	// maxText is the longest text that is shown, in bytes: longer ones come from peers or are mistakes.
	maxText = 600
	// maxRows is how many rows a table has: a browser is slow with thousands, that change each second.
	maxRows = 200
	// maxEvents is how many events are kept, a screen or two of a page.
	maxEvents = 100
	// maxSamples is how many looks a plot goes back: three minutes by default.
	maxSamples = 180
	// maxSeries is how many disks, exports and LUNs have plots. Each has maxSamples of 40 bytes.
	maxSeries = 256
	// tokenBytes are random, in the page's address. 128 bits are not guessed at any rate.
	tokenBytes = 16
)
