package target

import (
	"time"

	"github.com/ironwarp/ironwarp/scsi/lu"
)

const (
	// window is how many commands a session may have at once: as many as Linux' initiator sends.
	window = 128

	// immediates is how many commands for immediate delivery may be under way besides, and how many
	// task management functions and Logouts that have not been answered.
	immediates = 32

	// maxConnections is how many connections a session may have: more spread a session over more
	// processors than this target has for it.
	maxConnections = 4

	// maxEarlyData is how many bytes the requests have that wait for their turn, of all connections
	// of a session: some pings, or one text.
	maxEarlyData = 1 << 20

	// maxControls is how many answers other than those to commands wait to be sent. While there
	// are more nothing is received.
	maxControls = 64

	// maxKept and maxKeptData are how many answers other than those to commands a connection keeps until
	// they are acknowledged, at ErrorRecoveryLevel 1 and above, and how many bytes of data these have: the
	// answers to one burst of pings. Of more the oldest are forgotten, and a SNACK for them is rejected.
	maxKept     = 128
	maxKeptData = 1 << 20

	// maxRetries is how often data of one command are asked for again that came damaged, before it fails. On
	// a path that damages one PDU in ten that happens to none of 10^15 commands of one PDU.
	maxRetries = 16

	// What this target would have of the keys that bound data. Data that an initiator sends
	// unsolicited need memory whether there is some or not: window times firstBurst bytes for each
	// session. All others wait for memory within sessionMemory.
	firstBurst     = 64 << 10
	maxBurst       = 1 << 20
	maxRecvSegment = 256 << 10
	maxR2T         = 4
	sessionMemory  = 32 << 20

	// leastMemory is how many bytes a session has for its data whatever others have: two commands of any
	// length, beside what comes unsolicited.
	leastMemory = (window+immediates)*firstBurst + 2*lu.MaxTransfer

	// maxControlData is how many bytes the answers have that wait to be sent, besides the one that
	// exceeds it: echoes of pings, and texts. maxControlBuffer is the longest buffer of one
	// that is used again.
	maxControlData   = 1 << 20
	maxControlBuffer = 8 << 10

	// maxUnexpected is how many unexpected PDUs are sent to an initiator that acknowledges none, however
	// many it has room for.
	maxUnexpected = 64

	// poolMemory is how many bytes of buffers all sessions over TCP keep, and sessionPool how many one
	// with memory of its own does.
	poolMemory  = 64 << 20
	sessionPool = sessionMemory / 2

	// loginTime is how long a login may take. Somebody who has not authenticated has a
	// connection's receive buffer and no more.
	loginTime = 15 * time.Second

	// time2Retain is DefaultTime2Retain in seconds, the default of RFC 7143 section 13.16: how long commands
	// of a connection that has failed wait for another. Below ErrorRecoveryLevel 2 they do not.
	time2Retain = 20

	// Defaults of Config.
	defaultMaxSessions = 256
	defaultMaxLogins   = 128 // connections that have not logged in
	defaultMemory      = 512 << 20

	defaultPing     = 15 * time.Second
	defaultDataWait = 5 * time.Second

	// defaultSequenceWait is far more than a sequence of maxBurst bytes takes on any path that is of use.
	defaultSequenceWait = 10 * time.Second

	// defaultLogoutWait is time for an initiator to finish what it has begun, and short enough for
	// who waits for the end of a server.
	defaultLogoutWait = 3 * time.Second
)
