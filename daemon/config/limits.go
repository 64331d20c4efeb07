package config

import (
	"time"

	"github.com/ironwarp/ironwarp/rtrs"
)

const (
	// DefaultPort is the link's port of TCP and SCTP. NVMe over TCP has 4420; this one is
	// outside the ranges that Linux gives to outgoing connections.
	DefaultPort = 7471
	// DefaultUDPPort is the UDP port for SCTP in UDP (RFC 6951 section 6.2).
	DefaultUDPPort = 9899

	// DefaultISCSIPort is IANA's for iSCSI.
	DefaultISCSIPort = 3260
	// DefaultNVMePort is IANA's for NVMe over RDMA.
	DefaultNVMePort = 4420

	// DefaultISCSISessions are some of 64 initiators by four paths each; MaxISCSISessions is less than
	// there are handles of sessions.
	DefaultISCSISessions = 256
	MaxISCSISessions     = 16384 // see DefaultISCSISessions

	// DefaultErrorRecoveryLevel is what a target offers if its file does not say (RFC 7143 section 13.20).
	// Level 1 costs nothing unless an initiator asks for it, and makes of damage within a connection less than
	// the end of all that is under way. Level 2 also retains for a time what a connection had that has failed,
	// which is for who wants it.
	DefaultErrorRecoveryLevel = 1

	// MaxErrorRecoveryLevel is the highest that there is.
	MaxErrorRecoveryLevel = 2

	// MaxPaths is how many further paths a peer may have, and further pairs of addresses
	// an association: each costs an IKE SA, a path the memory of a session, and SCTP probes
	// each pair.
	MaxPaths = rtrs.MaxPaths - 1
	// MaxPathName in bytes keeps an IKE connection's PEER.PATH below strongSwan's bounds.
	MaxPathName = 16

	// MinHeartbeat and MaxHeartbeat bound the interval of heartbeats: a shorter one takes a
	// busy peer for a dead one, and with a longer one nobody notices within minutes.
	MinHeartbeat = 100 * time.Millisecond
	MaxHeartbeat = time.Minute // see MinHeartbeat
	// MaxHeartbeatMisses is more than a lossy network takes.
	MaxHeartbeatMisses = 100

	// MinFailAfter and MaxFailAfter bound how long I/O may wait for a path before it fails,
	// and DefaultFailAfter is that of no_path: fail. A second is less than a path takes to come
	// back; within half a minute most do, and users of a disk still wait.
	MinFailAfter     = time.Second
	MaxFailAfter     = 24 * time.Hour   // see MinFailAfter
	DefaultFailAfter = 30 * time.Second // see MinFailAfter
	// MaxReconnectAttempts is more than a day's.
	MaxReconnectAttempts = 100000

	// DefaultConnections per session: two streams keep both directions of a
	// two-core host busy; more cost memory for chunks and gain only on fast links.
	DefaultConnections = 2
	// MaxConnections per session. Beyond one per core there is nothing to gain.
	MaxConnections = 32

	// MaxPeerName and MaxExportName in bytes keep
	// /run/ironwarp/nbd/PEER-EXPORT.sock below the 107 bytes of a Unix socket
	// address, and leave room for both in RTRS' messages. In longer directories the
	// daemon cuts the names of sockets.
	MaxPeerName   = 32
	MaxExportName = 48 // bytes

	// MaxHostName in bytes is DNS's own (RFC 1035 2.3.4), without the dot at the end.
	MaxHostName = 253

	// MaxTargetName in bytes leaves room for the number of a LUN in the name of an export.
	MaxTargetName = MaxExportName - len("-lun255")
	// MaxLUN is the highest number of a LUN that every initiator knows.
	MaxLUN = 255
	// MaxNSID is the highest number of a namespace: as many as one list of Identify names.
	MaxNSID = 1024

	// MaxProfileName in bytes of an IPsec profile; it appears in tables.
	MaxProfileName = 32

	// MinIdleReap and MaxIdleReap bound how long an idle child SA is kept: a
	// shorter time would delete an SA between two accesses of an idle file system.
	MinIdleReap = 10 * time.Second
	MaxIdleReap = 24 * time.Hour // see MinIdleReap

	// MaxRekey is the longest life of keys that makes sense: RFC 4301 4.4.2.1 wants
	// lifetimes at all, and RFC 3723 5.4 counts in hours.
	MaxRekey = 7 * 24 * time.Hour

	// maxFile is the size in bytes above which a configuration file is refused unread: a mistake such as a device node or a disk image.
	maxFile = 1 << 20

	// MaxULPs is how many local consumers there may be: the device's guaranteed part
	// is divided among them.
	MaxULPs = 64
	// MaxULPName in bytes; it is part of the paths of sockets.
	MaxULPName = 16
	// MaxPortBlocks of a ULP: each is a guard, and two child SAs, of each peer that it may use.
	MaxPortBlocks = 16
	// MaxBlockPorts of a block: the guard names each port for what ICMP may quote.
	MaxBlockPorts = 4096
	// FirstProgramPort is the first port behind those of the system (RFC 6335 section 6), and
	// EndProgramPorts the first one that Linux gives to those who dial: with such a port in a block,
	// it would not be known of a stream which of its two ports is the block's.
	FirstProgramPort = 1024
	EndProgramPorts  = 32768 // see FirstProgramPort
	// DefaultAttachments are the disks that a local consumer may have attached at a
	// time: each costs a socket, and some goroutines and buffers for each client.
	DefaultAttachments = 16
	MaxAttachments     = 1024 // for one local consumer

	// MaxPartitions of a host: each is a guard and two child SAs of each member for each of its transports.
	MaxPartitions = 32
	// MaxMembers of a partition: more than a host has peers.
	MaxMembers = 4096

	// DefaultMemory is the registered memory in bytes over all peers, to which twice a
	// session of each peer that may attach something is added. MinMemory is the
	// least that some block sessions can do with, and MinServiceMemory that of one
	// service or local consumer.
	DefaultMemory    = 1 << 30
	MinMemory        = 64 << 20 // over all peers
	MinServiceMemory = 1 << 20  // of one service
	// DefaultStreams over all peers; each costs up to 20 KiB when idle, and in a block
	// session with DefaultQueueSize some 100 KiB.
	DefaultStreams = 1024
	MaxStreams     = 1 << 20 // over all peers
	// MaxResource bounds other counts: what an int32 holds, and more than a host has.
	MaxResource = 1 << 30
	// DefaultPingStreams and DefaultPingMemory in bytes are those of ping and bench:
	// 16 that peers may have with this host, and as many the other way round, of up
	// to 6 MiB each.
	DefaultPingStreams = 2 * 16
	DefaultPingMemory  = DefaultPingStreams * 6 << 20 // bytes
	// DefaultSessions that one peer may hold open at this host.
	DefaultSessions = 16
	// DefaultAllSessions are those of all peers, of which the second half is kept for peers
	// that have none.
	DefaultAllSessions = 256
	// DefaultQueueSize is the number of I/O requests in flight per session.
	DefaultQueueSize = 128

	// DefaultIdle is how long a stream is idle before it goes when streams run short:
	// nobody is using a disk that has not been touched for so long. MinIdle is some
	// rounds of the RNIC's checks, below which it cannot measure; above MaxIdle it is no
	// policy.
	DefaultIdle = 5 * time.Minute
	MinIdle     = time.Second        // see DefaultIdle
	MaxIdle     = 7 * 24 * time.Hour // see DefaultIdle
	// DefaultIdleBytes is more than the heartbeats of a block session take within
	// DefaultIdle, in bytes.
	DefaultIdleBytes = 16 << 10
	// DefaultIdleMark leaves a tenth of the streams for newcomers, in percent.
	DefaultIdleMark = 90

	// DefaultBlockRate and DefaultBlockBurst are streams, and attempts at one, that a
	// peer may create: all streams of DefaultSessions sessions at once when it comes
	// back, and then as many a second as a loop of pings takes.
	DefaultBlockRate  = 50
	DefaultBlockBurst = 1000 // see DefaultBlockRate
	// MinBlockBurst is the number of streams that a host with a few disks makes when it
	// comes back.
	MinBlockBurst = 16
	// DefaultBlock is how long a block lasts: somebody can look at it, and a peer that
	// was repaired comes back by itself.
	DefaultBlock = 10 * time.Minute

	// DefaultSlowRate and DefaultSlowBurst are slow paths of one stream: ten times
	// what a lossy network makes honest peers drive, and at most some tenths of a core.
	DefaultSlowRate  = 20_000
	DefaultSlowBurst = 200_000 // see DefaultSlowRate
)
