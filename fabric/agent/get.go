package agent

import (
	"slices"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// localPort is the number of the only port; 0 stands for the one that a request arrives at.
const localPort = 1

// get answers a valid Get.
func (a *Agent) get(request *mad.SMP, v verdict) Result {
	switch request.Attribute {
	case mad.AttrNodeDescription:
		name, _ := mad.MakeName(a.c.Name) // New has checked it
		return answer(request, name[:])
	case mad.AttrNodeInfo:
		return answer(request, mad.NodeInfo{
			BaseVersion: mad.BaseVersion, ClassVersion: mad.SMPClassVersion, Type: mad.NodeCA, Ports: 1,
			SystemImageGUID: a.c.GUID, NodeGUID: a.c.GUID, PortGUID: a.c.GUID,
			PartitionCap: uint16(len(a.pkeys)), LocalPort: localPort, VendorID: mad.Vendor,
		}.Append(nil))
	case mad.AttrPortInfo:
		if request.Modifier > localPort {
			return refuse(request, mad.StatusInvalidField)
		}
		return a.answerPortInfo(request, v)
	case mad.AttrGUIDInfo:
		guids := append([]mad.GUID{a.c.GUID}, a.c.GUIDs...)
		if request.Modifier >= uint32(blocksOf(len(guids), mad.GUIDsPerBlock)) {
			return refuse(request, mad.StatusInvalidField)
		}
		var info mad.GUIDInfo
		copy(info.GUIDs[:], guids[request.Modifier*mad.GUIDsPerBlock:])
		return answer(request, info.Append(nil))
	case mad.AttrPKeyTable:
		return a.answerPKeys(request)
	}
	return refuse(request, mad.StatusUnsupportedAttribute)
}

// portInfo is the port's state, without the M_Key.
func (a *Agent) portInfo() mad.PortInfo {
	state := mad.PortActive
	if a.drained {
		state = mad.PortArmed
	}
	capabilities := mad.CapTrap | mad.CapNotice
	if a.c.SM != nil {
		capabilities |= mad.CapSM
	}
	return mad.PortInfo{
		GIDPrefix: a.c.GIDPrefix, LID: a.c.LID, MasterSMLID: a.master, CapabilityMask: capabilities,
		MKeyLeasePeriod: a.guard.keys.fields().LeasePeriod, MKeyProtect: a.guard.keys.fields().Protect, MKeyViolations: a.guard.violations,
		LocalPort: localPort, State: state, PhysicalState: mad.PortLinkUp,
		LinkWidthEnabled: 1, LinkWidthSupported: 1, LinkWidthActive: 1,
		LinkSpeedSupported: 1, LinkSpeedActive: 1, LinkSpeedEnabled: 1, LinkDownDefault: 2,
		NeighborMTU: mad.MTU4096, MTUCap: mad.MTU4096, VLCap: 1, OperationalVLs: 1,
		GUIDCap: uint8(1 + len(a.c.GUIDs)),
	}
}

func (a *Agent) answerPortInfo(request *mad.SMP, v verdict) Result {
	info := a.portInfo()
	info.MKey = a.guard.shown(v)
	return answer(request, info.Append(nil))
}

// pkeyBlock is the block of the P_Key table that a request is about, and whether there is one. The upper half
// of the modifier names a switch's port.
func (a *Agent) pkeyBlock(request *mad.SMP) (first int, ok bool) {
	first = int(min(request.Modifier, maxPKeys)) * mad.PKeysPerBlock
	return first, first < len(a.pkeys)
}

func (a *Agent) answerPKeys(request *mad.SMP) Result {
	first, ok := a.pkeyBlock(request)
	if !ok {
		return refuse(request, mad.StatusInvalidField)
	}
	var table mad.PKeyTable
	copy(table.PKeys[:], a.pkeys[first:])
	return answer(request, table.Append(nil))
}

// blocksOf is the number of blocks that hold n entries, at least 1.
func blocksOf(n, perBlock int) int { return max(1, (n+perBlock-1)/perBlock) }

// blocks is a P_Key table in whole blocks.
func blocks(pkeys []uint16) []uint16 {
	table := make([]uint16, blocksOf(len(pkeys), mad.PKeysPerBlock)*mad.PKeysPerBlock)
	copy(table, pkeys)
	return table
}

// used are the entries of a table that are in use.
func used(table []uint16) []uint16 {
	return slices.DeleteFunc(slices.Clone(table), func(k uint16) bool { return base(k) == 0 })
}

const fullMember = 0x8000

// base is a P_Key without the membership bit.
func base(pkey uint16) uint16 { return pkey &^ fullMember }

// pkeyWithin reports whether a manager may set pkey where the configuration has allowed for the same
// partition, 0 for none: a limited member is made no full one.
func pkeyWithin(pkey, allowed uint16) bool { return base(allowed) == base(pkey) && pkey&^allowed == 0 }
