package nvme

// DiscoveryNQN is the well-known name of every discovery subsystem (NVMe-oF 1.5.1).
const DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// Port is IANA's for NVMe over RDMA.
const Port = 4420

// Opcode is the operation of a command. Its meaning depends on the queue: admin, I/O; 7Fh is the same on both.
type Opcode uint8

// The admin commands (NVMe 5).
const (
	AdminGetLogPage  Opcode = 0x02
	AdminIdentify    Opcode = 0x06
	AdminAbort       Opcode = 0x08
	AdminSetFeatures Opcode = 0x09
	AdminGetFeatures Opcode = 0x0a
	AdminAsyncEvent  Opcode = 0x0c
	AdminKeepAlive   Opcode = 0x18
)

// The I/O commands of the NVM command set (NVMe 6).
const (
	Flush               Opcode = 0x00
	Write               Opcode = 0x01
	Read                Opcode = 0x02
	Compare             Opcode = 0x05
	WriteZeroes         Opcode = 0x08
	DatasetManagement   Opcode = 0x09
	ReservationRegister Opcode = 0x0d
	ReservationReport   Opcode = 0x0e
	ReservationAcquire  Opcode = 0x11
	ReservationRelease  Opcode = 0x15
)

// Fabrics is the operation code of all fabrics commands; a type says which (NVMe-oF 3).
const Fabrics Opcode = 0x7f

// FabricsType is the type of a fabrics command.
type FabricsType uint8

// The types of fabrics commands (NVMe-oF figure 16).
const (
	PropertySet FabricsType = 0x00
	Connect     FabricsType = 0x01
	PropertyGet FabricsType = 0x04
	Disconnect  FabricsType = 0x08
)

// The properties of a controller, by their offsets (NVMe 3.1).
const (
	PropCAP  = 0x00 // 8 bytes
	PropVS   = 0x08
	PropCC   = 0x14
	PropCSTS = 0x1c
)

// Version is the version of NVMe that controllers report: 1.4.
const Version = 0x00010400

// The bits of CC and CSTS (NVMe 3.1.5, 3.1.6).
const (
	CCEnable         = 1 << 0
	CCShutdown       = 3 << 14 // SHN; 0: none
	CSTSReady        = 1 << 0
	CSTSFatal        = 1 << 1
	CSTSShutdown     = 3 << 2
	CSTSShutdownDone = 2 << 2
)

// CC's fields for the lengths of queue entries and the size of a page, as far as they have one value.
const (
	CCIOSQES = 6 << 16 // entries of 64 bytes
	CCIOCQES = 4 << 20 // and of 16
)

// CNS is what Identify asks for (NVMe 5.15.1).
type CNS uint8

// The values of CNS.
const (
	CNSNamespace      CNS = 0x00
	CNSController     CNS = 0x01
	CNSActiveList     CNS = 0x02
	CNSDescriptors    CNS = 0x03
	CNSControllerNVM  CNS = 0x06 // of the NVM command set
	IdentifyLen           = 4096
	MaxActive             = IdentifyLen / 4 // namespaces in a list
	AllNamespaces         = 0xffffffff
	DynamicController     = 0xffff // of Connect: any controller
)

// Feature is the identifier of a feature (NVMe 5.21.1).
type Feature uint8

// The features.
const (
	FeatureArbitration       Feature = 0x01
	FeaturePower             Feature = 0x02
	FeatureTemperature       Feature = 0x04
	FeatureErrorRecovery     Feature = 0x05
	FeatureWriteCache        Feature = 0x06
	FeatureQueues            Feature = 0x07
	FeatureAtomicity         Feature = 0x0a
	FeatureAsyncEvents       Feature = 0x0b
	FeatureKeepAlive         Feature = 0x0f
	FeatureHostID            Feature = 0x81
	FeatureReservationNotice Feature = 0x82
	FeatureReservationKept   Feature = 0x83
)

// LogPage is the identifier of a log page (NVMe 5.14.1).
type LogPage uint8

// The log pages.
const (
	LogErrors            LogPage = 0x01
	LogHealth            LogPage = 0x02
	LogFirmware          LogPage = 0x03
	LogChangedNamespaces LogPage = 0x04
	LogEffects           LogPage = 0x05
	LogDiscovery         LogPage = 0x70
	LogReservation       LogPage = 0x80
)

// The asynchronous events that a host can ask for, as bits of FeatureAsyncEvents and of OAES.
const (
	EventNamespaces = 1 << 8
	EventDiscovery  = 1 << 31
)

// AsyncEvent is the result of an Asynchronous Event Request (NVMe 5.2).
type AsyncEvent uint32

// The events: type, information, and the log page that has more.
const (
	EventNamespaceChanged   AsyncEvent = 2 | 0<<8 | AsyncEvent(LogChangedNamespaces)<<16
	EventDiscoveryChanged   AsyncEvent = 2 | 0xf0<<8 | AsyncEvent(LogDiscovery)<<16
	EventReservationChanged AsyncEvent = 6 | 0<<8 | AsyncEvent(LogReservation)<<16
)
