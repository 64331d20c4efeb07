package manager

import "time"

const (
	// discoverPolls is how often each manager is asked during discovery, and discoverInterval the time that it
	// has to answer each: a fabric that starts is not to wait for managers that are down, and one lost message
	// is not to give it two masters.
	discoverPolls    = 3
	discoverInterval = time.Second // see discoverPolls; less where sminfo_polling_timeout is less

	// maxSets of key fields go to a port that answers none: two with a key, in case an answer is lost, and two
	// without.
	maxSets = 4

	// maxHidden is how many keys of this manager's past are kept out of the log.
	maxHidden = 64
)
