package sa

import (
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// The limits below are ours, and hold whatever sa_etm_max_num_* say: a 0 there means no limit of the user's, but a host must
// not be able to take all memory of the manager. Who exceeds them is told so by the status No Resources.
const (
	// MaxPorts bounds the hosts that are known, down ones included: four times as many as a directory is made for.
	MaxPorts = 4096

	// MaxAliases bounds the alias GUIDs of a port: 16 blocks of 8, of which one is the port's own GUID. A vport is a local
	// user of a host, of which there are a few tens.
	MaxAliases = 128

	// MaxServices bounds all ServiceRecords: six times as many as a directory is made for, in about 40 MB.
	MaxServices = 1 << 16
	// MaxServicesPerPort bounds those that one port and its vports have registered, 6 MB: one host may have all that a directory
	// is made for, and six such hosts leave no room for others.
	MaxServicesPerPort = 10_000

	// MaxGroups bounds the multicast groups: a quarter of the MLIDs (0xc000 to 0xfffe), so that there is always a free one.
	MaxGroups = 4096
	// MaxMemberships bounds the members of all groups together, 10 MB: sixteen groups of each of MaxPorts.
	MaxMemberships = 1 << 16
	// MaxMembershipsPerPort bounds those that one port and its vports asked for: some for each of its vports.
	MaxMembershipsPerPort = 1024

	// MaxSubscriptions bounds the event subscriptions of all ports: each event is compared with each of them.
	MaxSubscriptions = 1 << 15
	// MaxSubscriptionsPerPort bounds those of one port and its vports: a few kinds of events for each of its vports.
	MaxSubscriptionsPerPort = 256

	// maxDroppers bounds the requesters whose drops are counted: those of a directory of 1,000 hosts with three vports each, in
	// 2 MB. Beyond, the one whose last drop is longest ago is forgotten.
	maxDroppers = 4096

	// maxTable bounds the records of one answer in bytes: 10,000 services and a half.
	maxTable = 15_000 * mad.ServiceRecordLen
	// maxTransfers bounds the answers under way of one port: it waits for one, and a second one may be at the other end of its
	// mind. A further one ends the oldest.
	maxTransfers = 2
	// maxTransferBytes bounds all answers under way. A thousand hosts that ask for the same table share it.
	maxTransferBytes = 128 << 20
	// shareFrom is from how many bytes on a table is shared.
	shareFrom = 64 << 10
	// maxReports bounds the reports that wait for one port, 8 KB: as many as a host that restarts causes.
	// Beyond, they are all forgotten, and one report says that events were missed.
	maxReports = 1024
	// reportWindow is how many reports a port is sent before it has answered the first.
	reportWindow = 16

	// noticeBurst is how many events one port's requests may cause at once, and noticeRate how many a second, after that: each
	// costs a report to each subscriber. Beyond, subscribers are told once a second that they have missed events.
	noticeBurst = 256
	noticeRate  = 16

	// lineBurst is how many lines about drops of one port and its vports there may be at once, and lineRate how many a second after
	// that: one in ten seconds. Rows of a few vports for a few reasons are fewer.
	lineBurst = 200
	lineRate  = 0.1

	// searchBurst is how many services may be looked at for one port's Gets and GetTables, and for aliases that it takes away, at once, and searchRate how many a second
	// after that: 400 and 40 searches among 10,000 services, which take a tenth of a second and a hundredth. Beyond, the answer
	// is the status busy, so that nobody keeps the directory from others by questions.
	searchBurst = 4_000_000
	searchRate  = 400_000
	// searchKept of searchBurst is for the host itself, whatever its users ask.
	searchKept = searchBurst / 4
)

const (
	// deadAfter is how long a port that is down keeps its records and its place: the time in which a restarted daemon comes
	// back. So a host that reconnects gets no new allowance.
	deadAfter = 30 * time.Second

	// quietRun is after how long without a drop the next one is the first of a new run, as with other lines that peers cause.
	quietRun = time.Minute

	// transferTimeout is after how long without an acknowledgement an answer is given up: longer than a stream pauses while IKE
	// makes its SA anew.
	transferTimeout = 30 * time.Second

	// reportTimeout is how long a report waits for its answer before it is sent again; the wait doubles each time up to
	// maxReportTimeout. It is sent until it is answered, the port is down, or the subscription ends.
	reportTimeout    = 2 * time.Second
	maxReportTimeout = 64 * time.Second
)
