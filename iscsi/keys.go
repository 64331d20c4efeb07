package iscsi

import (
	"strconv"
	"strings"
)

// Use is when a key may be sent (RFC 7143 section 13).
type Use uint8

// The uses of keys.
const (
	LeadingOnly     Use = iota // LO: in the login of a session's first connection
	InitializeOnly             // IO: in a login
	FullFeatureOnly            // FFPO
	Always                     // ALL
)

// Scope is what a key's value holds for.
type Scope uint8

// The scopes of keys.
const (
	SessionWide Scope = iota
	ConnectionOnly
)

// Result is a key's result function: what the answer to an offer is.
type Result uint8

// The result functions.
const (
	Declared Result = iota // no answer
	Minimum
	Maximum
	And
	Or
	FirstOf  // the first value of a list that both know
	Obsolete // section 13.25
)

// KeyID is a key of the table Keys.
type KeyID uint8

// The keys of RFC 7143 section 13, of RFC 7144 and of RFC 7145 section 6.
const (
	KeyHeaderDigest KeyID = iota
	KeyDataDigest
	KeyMaxConnections
	KeySendTargets
	KeyTargetName
	KeyInitiatorName
	KeyTargetAlias
	KeyInitiatorAlias
	KeyTargetAddress
	KeyTargetPortalGroupTag
	KeyInitialR2T
	KeyImmediateData
	KeyMaxRecvDataSegmentLength
	KeyMaxBurstLength
	KeyFirstBurstLength
	KeyDefaultTime2Wait
	KeyDefaultTime2Retain
	KeyMaxOutstandingR2T
	KeyDataPDUInOrder
	KeyDataSequenceInOrder
	KeyErrorRecoveryLevel
	KeySessionType
	KeyTaskReporting
	KeyProtocolLevel
	KeyNodeArchitecture
	KeyIFMarker
	KeyOFMarker
	KeyIFMarkInt
	KeyOFMarkInt
	KeyRDMAExtensions
	KeyTargetRecvDataSegmentLength
	KeyInitiatorRecvDataSegmentLength
	KeyMaxOutstandingUnexpectedPDUs
	KeyMaxAHSLength
	KeyTaggedBufferForSolicitedDataOnly
	KeyISERHelloRequired
	NumKeys
)

// Key describes a key.
type Key struct {
	Name                      string
	Use                       Use
	Scope                     Scope
	Result                    Result
	FromInitiator, FromTarget bool     // only from it; if neither is set, from both
	AnyStage                  bool     // also while security is negotiated
	NotInDiscovery            bool     // irrelevant when SessionType=Discovery
	OnlyRDMA                  bool     // irrelevant when RDMAExtensions=No
	NotRDMA                   bool     // irrelevant when RDMAExtensions=Yes
	Text                      bool     // its value is not a number
	Min, Max                  uint32   // of a number
	ZeroToo                   bool     // 0 is admissible, too
	Values                    []string // of a list; a value is a bit, the first is bit 0
	Default                   uint32   // of a list the bit of a value
}

// The values of lists.
const (
	DigestNone   = 1 << 0
	DigestCRC32C = 1 << 1

	ReportRFC3720       = 1 << 0
	ReportResponseFence = 1 << 1
	ReportFastAbort     = 1 << 2
)

const maxSegment = 1<<24 - 1

var digests = []string{"None", "CRC32C"}

// Keys is the table of keys.
var Keys = [NumKeys]Key{
	KeyHeaderDigest:             {Name: "HeaderDigest", Use: InitializeOnly, Scope: ConnectionOnly, Result: FirstOf, Values: digests, NotRDMA: true, Default: DigestNone},
	KeyDataDigest:               {Name: "DataDigest", Use: InitializeOnly, Scope: ConnectionOnly, Result: FirstOf, Values: digests, NotRDMA: true, Default: DigestNone},
	KeyMaxConnections:           {Name: "MaxConnections", Result: Minimum, NotInDiscovery: true, Min: 1, Max: 65535, Default: 1},
	KeySendTargets:              {Name: "SendTargets", Use: FullFeatureOnly, FromInitiator: true, Text: true},
	KeyTargetName:               {Name: "TargetName", Use: InitializeOnly, FromInitiator: true, Text: true, AnyStage: true},
	KeyInitiatorName:            {Name: "InitiatorName", Use: InitializeOnly, FromInitiator: true, Text: true, AnyStage: true},
	KeyTargetAlias:              {Name: "TargetAlias", Use: Always, FromTarget: true, Text: true, AnyStage: true},
	KeyInitiatorAlias:           {Name: "InitiatorAlias", Use: Always, FromInitiator: true, Text: true, AnyStage: true},
	KeyTargetAddress:            {Name: "TargetAddress", Use: Always, FromTarget: true, Text: true, AnyStage: true},
	KeyTargetPortalGroupTag:     {Name: "TargetPortalGroupTag", Use: InitializeOnly, FromTarget: true, Text: true, AnyStage: true},
	KeyInitialR2T:               {Name: "InitialR2T", Result: Or, NotInDiscovery: true, Default: 1},
	KeyImmediateData:            {Name: "ImmediateData", Result: And, NotInDiscovery: true, Default: 1},
	KeyMaxRecvDataSegmentLength: {Name: "MaxRecvDataSegmentLength", Use: Always, Scope: ConnectionOnly, Min: 512, Max: maxSegment, Default: LoginDataSegment},
	KeyMaxBurstLength:           {Name: "MaxBurstLength", Result: Minimum, NotInDiscovery: true, Min: 512, Max: maxSegment, Default: 262144},
	KeyFirstBurstLength:         {Name: "FirstBurstLength", Result: Minimum, NotInDiscovery: true, Min: 512, Max: maxSegment, Default: 65536},
	KeyDefaultTime2Wait:         {Name: "DefaultTime2Wait", Result: Maximum, Max: 3600, Default: 2},
	KeyDefaultTime2Retain:       {Name: "DefaultTime2Retain", Result: Minimum, Max: 3600, Default: 20},
	KeyMaxOutstandingR2T:        {Name: "MaxOutstandingR2T", Result: Minimum, NotInDiscovery: true, Min: 1, Max: 65535, Default: 1},
	KeyDataPDUInOrder:           {Name: "DataPDUInOrder", Result: Or, NotInDiscovery: true, Default: 1},
	KeyDataSequenceInOrder:      {Name: "DataSequenceInOrder", Result: Or, NotInDiscovery: true, Default: 1},
	KeyErrorRecoveryLevel:       {Name: "ErrorRecoveryLevel", Result: Minimum, Max: 2},
	KeySessionType:              {Name: "SessionType", FromInitiator: true, Text: true, AnyStage: true},
	KeyTaskReporting:            {Name: "TaskReporting", Result: FirstOf, NotInDiscovery: true, Values: []string{"RFC3720", "ResponseFence", "FastAbort"}, Default: ReportRFC3720},
	KeyProtocolLevel:            {Name: "iSCSIProtocolLevel", Result: Minimum, NotInDiscovery: true, Max: 31, Default: 1},
	KeyNodeArchitecture:         {Name: "X#NodeArchitecture", Text: true},

	KeyIFMarker:  {Name: "IFMarker", Result: Obsolete, Use: InitializeOnly, Text: true},
	KeyOFMarker:  {Name: "OFMarker", Result: Obsolete, Use: InitializeOnly, Text: true},
	KeyIFMarkInt: {Name: "IFMarkInt", Result: Obsolete, Use: InitializeOnly, Text: true},
	KeyOFMarkInt: {Name: "OFMarkInt", Result: Obsolete, Use: InitializeOnly, Text: true},

	KeyRDMAExtensions:                   {Name: "RDMAExtensions", Result: And, NotInDiscovery: true},
	KeyTargetRecvDataSegmentLength:      {Name: "TargetRecvDataSegmentLength", Use: InitializeOnly, Scope: ConnectionOnly, Result: Minimum, OnlyRDMA: true, Min: 512, Max: maxSegment, Default: LoginDataSegment},
	KeyInitiatorRecvDataSegmentLength:   {Name: "InitiatorRecvDataSegmentLength", Use: InitializeOnly, Scope: ConnectionOnly, Result: Minimum, OnlyRDMA: true, Min: 512, Max: maxSegment, Default: LoginDataSegment},
	KeyMaxOutstandingUnexpectedPDUs:     {Name: "MaxOutstandingUnexpectedPDUs", OnlyRDMA: true, Min: 2, Max: 1<<32 - 1, ZeroToo: true},
	KeyMaxAHSLength:                     {Name: "MaxAHSLength", OnlyRDMA: true, Min: 2, Max: 1<<32 - 1, ZeroToo: true, Default: 256},
	KeyTaggedBufferForSolicitedDataOnly: {Name: "TaggedBufferForSolicitedDataOnly", FromInitiator: true, OnlyRDMA: true, Max: 1},
	KeyISERHelloRequired:                {Name: "iSERHelloRequired", FromInitiator: true, OnlyRDMA: true, Max: 1},
}

var keyByName = func() map[string]KeyID {
	m := make(map[string]KeyID, NumKeys)
	for id := range Keys {
		m[Keys[id].Name] = KeyID(id)
	}
	return m
}()

// KeyNamed returns the key of a name.
func KeyNamed(name string) (id KeyID, ok bool) {
	id, ok = keyByName[name]
	return id, ok
}

// Values has a value for each key that is a number; of a boolean 1 for Yes, of a list a bit.
type Values [NumKeys]uint32

// DefaultValues is what holds where nothing is negotiated.
func DefaultValues() (v Values) {
	for id := range Keys {
		v[id] = Keys[id].Default
	}
	return v
}

// Bool reports whether a boolean is Yes.
func (v *Values) Bool(id KeyID) bool { return v[id] != 0 }

// isBoolean reports whether a key's values are Yes and No.
func (k *Key) isBoolean() bool {
	return k.Result == And || k.Result == Or || k.Result == Declared && k.Max == 1
}

// parse reads a value that is offered or declared. ok is false if it is not admissible.
func (k *Key) parse(s string) (v uint32, ok bool) {
	if k.isBoolean() {
		return uint32(strings.Index("No Yes", s) / 3), s == "Yes" || s == "No"
	}
	n, err := parseNumber(s)
	if err != nil || n > uint64(k.Max) || n < uint64(k.Min) && !(k.ZeroToo && n == 0) {
		return 0, false
	}
	return uint32(n), true
}

// Format returns a value as text.
func (k *Key) Format(v uint32) string {
	switch {
	case k.isBoolean():
		return [2]string{"No", "Yes"}[v&1]
	case k.Result == FirstOf:
		for i, s := range k.Values {
			if v == 1<<i {
				return s
			}
		}
	}
	return strconv.FormatUint(uint64(v), 10)
}

// The constants that answer an offer instead of a value (RFC 7143 section 6.2).
const (
	notUnderstood = "NotUnderstood"
	irrelevant    = "Irrelevant"
	rejected      = "Reject"
)

// answer applies a key's result function to an offer. ours is what this side would have; of a list
// all that it can, as bits. ok is false if the offer is refused.
func (k *Key) answer(offer string, ours uint32) (v uint32, ok bool) {
	if k.Result == FirstOf {
		for s := range strings.SplitSeq(offer, ",") {
			for i, known := range k.Values {
				if s == known && ours&(1<<i) != 0 {
					return 1 << i, true
				}
			}
		}
		return 0, false
	}
	v, ok = k.parse(offer)
	if !ok {
		return 0, false
	}
	switch k.Result {
	case Minimum:
		v = min(v, ours)
	case Maximum:
		v = max(v, ours)
	case And:
		v &= ours
	case Or:
		v |= ours
	}
	return v, true
}
