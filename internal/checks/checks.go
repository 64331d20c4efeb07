// Package checks names the checks by which RFC 5042 is enforced, so that tests can
// switch one off: an attack that then succeeds is one that the check stops.
//
// A product build has checks that cannot be switched off, and does not import this
// package. Only the build tag "weakened" compiles in the switches, for
// integration/attack and integration/history.
package checks

// Check is one check.
type Check uint8

// The checks, by the rows of the table in docs/security.md.
const (
	None             Check = iota
	DeclaredTrust          // R3: a consumer's domains are trusted no more than it is
	StreamTrust            // R3: a protection domain of a strict model has one stream
	RandomSTag             // R7: STags come from the CSPRNG
	FreshSTag              // R7: an STag that has gone is not given again soon
	PDOfSTag               // R8: an STag is of the stream's protection domain
	ReadAnswer             // R8: a Read Response is to the oldest Read of ours
	StreamOfSTag           // R9: an STag for one stream is used on that
	Terminate              // R10: a fault is answered by the Terminate that names it
	FaultEvent             // R10: and reported by an event
	LiveSTag               // R10, R15: an STag that has gone opens nothing
	Bounds                 // R11, R16: an access is within base and bounds
	TOWrap                 // R11: a tagged offset does not wrap
	Revocation             // R12: a revocation waits for what is in flight
	Rights                 // R17: an access has the right it needs
	Alias                  // R18: no memory for two who don't trust each other
	AliasWindow            // R18: no window on memory that the peer of another stream writes
	HalfOpen               // R19: half-open streams are counted
	StreamRate             // R19: a peer that keeps creating streams is blocked
	BacklogShare           // R19: requests of one peer give way to those of others
	PeerQuota              // R2, R19: what a peer has is counted against its quota
	FairShare              // R2, R28: what others have not taken of their shares is kept
	Reaping                // R20: idle streams go when streams run short
	SRQShare               // R21: a stream's part of a shared receive queue is bounded
	CQReservation          // R22: a completion queue has room for all that may be posted
	IRRQDepth              // R23: the peer's Reads are bounded by the IRD
	ORDDepth               // R23: ours by the peer's IRD
	SlowPath               // R24: slow paths that a peer drives are metered
	SharedSTag             // R25: an STag of several streams has no remote rights without trust
	CQIsolation            // R26: an overflow ends the streams of that queue only
	ForeignCQ              // R27: a completion queue is its ULP's
	ForeignMemory          // R29: memory that another ULP has registered
	EventShare             // R30: events of one peer are bounded
	LogRepeats             // R30: what a peer does without end takes few lines of a log
	ForeignPD              // R31: objects are of the same protection domain
	RevokeFirst            // R13: a service revokes the peer's access before it looks
	Diversion              // R13: what a lost path brings is not placed where a read's data went
	Zeroed                 // R14: memory is cleared before a peer may read it
	ReadWhileNeeded        // R15: a service lets a peer read while it has to, no longer
	ExactWindow            // R16: what a service opens is the data of the operation
	DataOrder              // R11, R16: iSCSI's data have each byte once and in its place
	CommandWindow          // R21: no more commands than an initiator was let have
	RequestBound           // R21: nor more of what it asks for besides
	TextBound              // R24: a key has one answer in a negotiation
	SessionOwner           // R9: an iSCSI session is continued and replaced by whom it is of
	Authentication         // R1: who is to authenticate himself by CHAP has
	Reflection             // R1: and not by what the target computes
	CaptureUser            // R4: what ESP protects is shown in clear to root alone
	Admission              // R1: an initiator sees and uses what it may
	CopyShare              // R2: an initiator's part of what copies take is bounded
	Management             // R33: requests to manage the host come by a Unix socket
	LocalUser              // R1: a local user is a ULP that the configuration names, or nobody
	LocalPrivilege         // R1: what a ULP may ask of the daemon
	LocalOwner             // R1: what a ULP has is seen and touched by nobody else
	LocalSocket            // R1: the disk of a ULP is opened by its users
	LocalPeer              // R1: a ULP uses the peers and exports that it may
	LocalShare             // R2: a ULP's part of the control socket is bounded
	LocalBody              // R2: a request is short
	ProgramPort            // R1: a program has streams at the ports of its ULP
	ProgramSocket          // R1: a program's flow is what the kernel says of its socket
	ProgramEnd             // R1: a program's flows end when nobody vouches for them
	ProgramShut            // R1: what a program does not end is ended for it
	ProgramWitness         // R19: what a program reports has no peer blocked for others
	PartitionQP            // P1: a queue pair is made only if its label may use its partition
	PartitionDial          // P2: a stream of a partition is dialled only if its label may
	PartitionRequest       // P2: a request of a partition is answered only if the listener's label may
	PartitionChange        // P5: what may not use its partition any more ends
	PartitionMember        // P3: hosts of a partition are members, and not both limited ones
	ProgramPartition       // P1: a program has streams in a partition only if its label may
	ExportPartition        // P6: an export exists in its partition alone
	LabelOfSA              // P4: a stream's SA was negotiated with the label of its partition

	InviteToken      // an exchange of an invitation is with who knows its token
	InviteOnce       // an invitation serves one joiner
	InviteExpiry     // until it expires
	InviteCommitment // a joiner is bound to its key before it sees the inviter's
	InviteConfirm    // a peer is written when both people have confirmed the code

	// Management keys (docs/fabric.md).

	ManagerIdentity // an agent listens to managers by IKE's identity alone
	MKeyOfPort      // a Set needs the port's M_Key
	MKeyOfGet       // and from protection level 2 on a Get does
	MKeyShown       // a Get shows the M_Key as its level of protection says
	MKeyPerPort     // the M_Key of one port opens no other
	RivalIdentity   // SMInfo counts from managers by IKE's identity alone
	RivalKey        // and with the sm_key that this manager has
	SMKeyTold       // the sm_key is told to managers whose M_Key matches
	SMInfoAnswer    // an answer is to a question, and about who gives it
	MKeyOfTrap      // an M_Key is not sent to who makes a trap up
	AgentPKeys      // a manager puts a host into no partition that its configuration does not have

	// What keeps written data as it is, which integration/history has a scene for.

	FreshDevice       // a device id is not given to a second disk of a session
	DetachedDisk      // a disk that was closed stays closed, and its parked I/O is dropped
	CloseWaits        // a disk is closed when its I/O has ended at the server
	Succession        // I/O of an NBD client that is gone is dropped, or has ended, before another's begins
	PostingOrder      // what is sent again goes in the order of its posting
	AtMostOnce        // a write that is sent again is not executed again
	InDoubt           // a write that may have been executed is not sent again where others write
	DiskShare         // a part of a session's permits is kept for each of its disks
	ClientBytes       // permits do not wait for bytes of an NBD client
	LateOpen          // a device that an abandoned OPEN has opened is closed
	StoreLife         // a flush fails if the storage may have lost writes that it should cover
	DiskIdentity      // a disk that was attached does not go on as another
	FlushLatch        // a writeback error that one call reported fails every later flush
	KilledInSync      // nor is it forgotten when the daemon dies in the call that would get it
	RestoredFile      // a reload takes the file that stands at an export's path
	OneWriter         // an export has one writer unless it is shared
	WriterReservation // a writer whose place another has had since does not go on
	Fence             // a writer that was fenced writes no more in the session that it has
	ReadyFirst        // I/O of a disk whose export is not open yet waits for it
	Settled           // a write waits for the end of one that has failed without a path
	PacketChecksum    // a packet of SCTP that was damaged on its way is dropped
	SegmentOrder      // over SCTP a message is delivered when all before it are in their place

	// What pools and volumes promise (docs/security.md).

	PoolManager   // a pool is managed by whom it names
	PoolDirectory // nobody else puts anything into a pool's directory, and no link leads out of it
	VolumeLease   // a volume has one writer before and after it is published to another peer
	VolumeQuota   // a pool has so many volumes
	ManageShare   // a peer has so many requests under way

	// What the directory's trust model promises (docs/security.md).

	SAKey           // a wrong SA_Key is dropped
	SATrust         // the right one alone makes a request trusted
	SARequestSet    // the untrusted ask for what is in the set
	SAGUIDInfo      // they change no GUIDInfoRecords, if the option says so
	SAGUIDInfoVPort // nor do vports
	SAProxy         // nor anything of other ports
	SALimit         // registrations are bounded per port and vport
	SAReconnect     // a reconnect is no new allowance
	SALease         // a lease ends
	SGIDSpoofing    // a request comes from an address of its port
	SARequester     // which port that is, no record says
	SAServiceOwner  // a service is changed by its owner, or with its key
	SAServiceKey    // the key is shown to the trusted alone
	SAMemberOwner   // a membership is changed by its owner
	SAAliasOwner    // an alias GUID is taken away by its owner
	SAForeignGUID   // a host's GUID is no other's alias
	SASecurityTraps // security traps are reported to the trusted alone
	SAName          // names can be printed
	SADropLog       // drops without end take few lines of the log
	NoticeOfItself  // a host tells of events of its own alone

	// What the page of `ironwarp web` promises (docs/security.md).

	WebToken  // the page is shown to whom knows its address
	WebHost   // and by this host's own names
	WebOrigin // and to no page of another origin
	WebEscape // what peers choose is text in it
)
