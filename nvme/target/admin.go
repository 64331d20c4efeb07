package target

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/nvme"
)

// admin runs a command of the admin queue.
func (k *command) admin(x *controller) {
	op := k.cmd.Opcode()
	switch {
	case op == nvme.AdminIdentify:
		k.identify(x)
	case op == nvme.AdminGetLogPage:
		k.logPage(x)
	case op == nvme.AdminGetFeatures:
		k.getFeature(x)
	case op == nvme.AdminSetFeatures:
		k.setFeature(x)
	case op == nvme.AdminAsyncEvent:
		k.asyncEvent(x)
	case op == nvme.AdminKeepAlive:
		k.end(nvme.Success)
	case op == nvme.AdminAbort && x.sub != nil:
		k.abort(x)
	default:
		k.fail(nvme.InvalidOpcode | nvme.DNR)
	}
}

// namespaces are those of the controller's subsystem.
func (x *controller) namespaces() map[uint32]*Namespace {
	if x.sub == nil {
		return nil
	}
	return *x.sub.spaces.Load()
}

// identify runs Identify (NVMe 5.15).
func (k *command) identify(x *controller) {
	spaces := x.namespaces()
	ns, nsid := spaces[k.cmd.NSID()], k.cmd.NSID()
	var b []byte
	switch cns := nvme.CNS(k.cmd.DWord(10)); {
	case cns == nvme.CNSController:
		b = x.describe()
	case x.sub == nil:
		k.fail(nvme.InvalidField | nvme.DNR)
		return
	case cns == nvme.CNSControllerNVM && k.cmd.DWord(11)>>24 == 0:
		shift := 0
		for s := 4096; s < maxRange && shift < 15; s *= 2 {
			shift++
		}
		b = nvme.AppendControllerNVM(nil, uint8(min(shift, 13)), nvme.MaxRanges-1, 0, 0)
	case cns == nvme.CNSActiveList && nsid < nvme.AllNamespaces-1:
		var list []uint32
		for _, n := range slices.Sorted(maps.Keys(spaces)) {
			if n > nsid {
				list = append(list, n)
			}
		}
		b = nvme.AppendActive(nil, list)
	case cns == nvme.CNSNamespace && nsid != 0 && nsid != nvme.AllNamespaces:
		if b = make([]byte, nvme.IdentifyLen); ns != nil { // one that is not active is zeroes
			b = ns.describe()
		} else if nsid > maxNSID(spaces) {
			k.fail(nvme.InvalidNamespace | nvme.DNR)
			return
		}
	case cns == nvme.CNSDescriptors && ns != nil:
		b = nvme.AppendDescriptors(nil, ns.cfg.ID)
	case cns == nvme.CNSDescriptors, cns == nvme.CNSNamespace, cns == nvme.CNSActiveList:
		k.fail(nvme.InvalidNamespace | nvme.DNR)
		return
	default:
		k.fail(nvme.InvalidField | nvme.DNR)
		return
	}
	k.answer(b, 0, nvme.IdentifyLen)
}

// maxNSID is NN, the highest number that a namespace may have for the host.
func maxNSID(spaces map[uint32]*Namespace) uint32 {
	highest := uint32(maxNamespaces)
	for n := range spaces {
		highest = max(highest, n)
	}
	return highest
}

// describe is the controller for Identify.
func (x *controller) describe() []byte {
	c := nvme.IdentifyController{
		Firmware: x.srv.cfg.Firmware, Controller: x.id, MDTS: transferShift, Discovery: x.sub == nil,
		Attributes: nvme.AttrHostID128 | nvme.AttrTrafficKeepAlive, EventLimit: maxEvents - 1, ErrorEntries: maxErrors - 1, LogAttributes: nvme.LogExtended,
		KeepAliveUnits: uint16(keepAliveUnit / (100 * time.Millisecond)), SGLs: nvme.SGLSupported | nvme.SGLKeyed | nvme.SGLOffset,
		SubsystemNQN: x.host.SubsystemNQN, CommandCapsule: nvme.CommandLen, MaxDescriptors: 1, MaxCommands: ioDepth,
	}
	if x.sub == nil {
		c.Serial, c.Model, c.AsyncEvents = "discovery", "IronWarp discovery", nvme.EventDiscovery
		return c.Append(nil)
	}
	cfg := x.sub.cfg.Load()
	spaces := x.namespaces()
	c.Serial, c.Model = cfg.Serial, cmp.Or(cfg.Model, "IronWarp")
	c.AsyncEvents, c.Shared, c.Disconnect = nvme.EventNamespaces, true, true
	c.LogAttributes |= nvme.LogEffectsSupported
	c.AbortLimit = 3
	c.CommandCapsule = capsuleLen
	c.Namespaces = maxNSID(spaces)
	c.Optional = nvme.OptionalCompare | nvme.OptionalDSM | nvme.OptionalWriteZeroes | nvme.OptionalReservations
	for _, ns := range spaces {
		c.WriteCache = c.WriteCache || ns.geo.CanFlush
	}
	return c.Append(nil)
}

// effects are the commands that the controllers of subsystems know.
var effects = []nvme.Effect{
	{Admin: true, Opcode: nvme.AdminGetLogPage}, {Admin: true, Opcode: nvme.AdminIdentify}, {Admin: true, Opcode: nvme.AdminAbort},
	{Admin: true, Opcode: nvme.AdminSetFeatures}, {Admin: true, Opcode: nvme.AdminGetFeatures}, {Admin: true, Opcode: nvme.AdminAsyncEvent}, {Admin: true, Opcode: nvme.AdminKeepAlive},
	{Opcode: nvme.Flush}, {Opcode: nvme.Write, Changes: true}, {Opcode: nvme.Read}, {Opcode: nvme.Compare}, {Opcode: nvme.WriteZeroes, Changes: true}, {Opcode: nvme.DatasetManagement, Changes: true},
	{Opcode: nvme.ReservationRegister}, {Opcode: nvme.ReservationReport}, {Opcode: nvme.ReservationAcquire}, {Opcode: nvme.ReservationRelease},
}

// logPage runs Get Log Page (NVMe 5.14). A page is whole from its beginning, whatever of it is asked for.
func (k *command) logPage(x *controller) {
	d := k.cmd.DWord(10)
	keeps := d&(1<<15) != 0 // RAE: the event is not over
	n := (uint64(d>>16)|uint64(k.cmd.DWord(11)&0xffff)<<16)*4 + 4
	off := uint64(k.cmd.DWord(12)) | uint64(k.cmd.DWord(13))<<32
	if n > maxTransfer || off%4 != 0 {
		k.fail(nvme.InvalidField | nvme.DNR)
		return
	}
	var b []byte
	clears := -1
	switch page := nvme.LogPage(d); {
	case page == nvme.LogDiscovery && x.sub == nil:
		b, clears = x.srv.discoveryLog(x), eventDiscovery
	case page == nvme.LogErrors:
		b = x.errorLog()
	case page == nvme.LogHealth && x.sub != nil:
		b = x.health()
	case page == nvme.LogFirmware && x.sub != nil:
		b = nvme.AppendFirmware(nil, x.srv.cfg.Firmware)
	case page == nvme.LogChangedNamespaces && x.sub != nil:
		b, clears = x.changedNamespaces(!keeps && off == 0), eventNamespaces
	case page == nvme.LogEffects && x.sub != nil:
		b = nvme.AppendEffects(nil, effects)
	case page == nvme.LogReservation && x.sub != nil:
		b, clears = x.reservationLog(!keeps && off == 0), eventReservations
	default:
		k.fail(nvme.InvalidLogPage | nvme.DNR)
		return
	}
	if off > uint64(len(b)) {
		k.fail(nvme.InvalidField | nvme.DNR)
		return
	}
	if clears >= 0 && !keeps {
		x.heardOf(clears)
	}
	k.answer(b, off, uint32(n))
}

// discoveryLog is what a host may see, by the way on which it asks.
func (s *Server) discoveryLog(x *controller) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []nvme.DiscoveryEntry{{NQN: nvme.DiscoveryNQN, Address: x.origin.Local, PortID: 1, MaxAdmin: adminDepth, Itself: true}}
	for _, nqn := range slices.Sorted(maps.Keys(s.subsystems)) {
		if s.subsystems[nqn].visible(x.origin, x.host.HostNQN) {
			all = append(all, nvme.DiscoveryEntry{NQN: nqn, Address: x.origin.Local, PortID: 1, MaxAdmin: adminDepth})
		}
	}
	return nvme.AppendDiscovery(nil, s.generation, all)
}

func (x *controller) errorLog() []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	var b []byte
	for _, e := range x.errors {
		b = e.Append(b)
	}
	return append(b, make([]byte, (maxErrors-len(x.errors))*nvme.ErrorEntryLen)...)
}

func (x *controller) health() []byte {
	x.mu.Lock()
	faults := x.faults
	x.mu.Unlock()
	i := &x.io
	return nvme.Health{ReadBytes: i.readBytes.Load(), WrittenBytes: i.writeBytes.Load(), Reads: i.reads.Load(), Writes: i.writes.Load(),
		Errors: i.errors.Load(), Entries: faults, Hours: uint64(time.Since(x.srv.begun).Hours())}.Append(nil)
}

// getFeature runs Get Features (NVMe 5.13): the current value is also the default and the saved one.
func (k *command) getFeature(x *controller) {
	switch f := nvme.Feature(k.cmd.DWord(10)); {
	case f == nvme.FeatureAsyncEvents:
		x.mu.Lock()
		k.result = uint64(x.events.mask)
		x.mu.Unlock()
	case f == nvme.FeatureKeepAlive:
		x.mu.Lock()
		k.result = uint64(x.kato.Milliseconds())
		x.mu.Unlock()
	case x.sub == nil:
		k.fail(nvme.InvalidField | nvme.DNR)
		return
	case f == nvme.FeatureHostID:
		if k.cmd.DWord(11)&1 == 0 {
			k.fail(nvme.HostIDInconsistent | nvme.DNR)
			return
		}
		k.answer(x.host.HostID[:], 0, 16)
		return
	case f == nvme.FeatureQueues:
		k.result = (maxQueues - 1) | (maxQueues-1)<<16
	case f == nvme.FeatureWriteCache:
		for _, ns := range x.namespaces() {
			if ns.geo.CanFlush {
				k.result = 1
			}
		}
	case f == nvme.FeatureReservationNotice:
		x.mu.Lock()
		k.result = uint64(x.events.muted[k.cmd.NSID()])
		x.mu.Unlock()
	case f == nvme.FeatureReservationKept:
		ns := x.namespaces()[k.cmd.NSID()]
		if ns == nil {
			k.fail(nvme.InvalidNamespace | nvme.DNR)
			return
		}
		if ns.keepsReservations() {
			k.result = 1
		}
	case f == nvme.FeatureArbitration, f == nvme.FeaturePower, f == nvme.FeatureTemperature, f == nvme.FeatureErrorRecovery, f == nvme.FeatureAtomicity:
		// 0: there is nothing to say.
	default:
		k.fail(nvme.InvalidField | nvme.DNR)
		return
	}
	k.end(nvme.Success)
}

// setFeature runs Set Features (NVMe 5.21).
func (k *command) setFeature(x *controller) {
	v, saves := k.cmd.DWord(11), k.cmd.DWord(10)>>31 != 0
	st := nvme.Success
	switch f := nvme.Feature(k.cmd.DWord(10)); {
	case saves:
		st = nvme.FeatureNotSaveable | nvme.DNR
	case f == nvme.FeatureAsyncEvents:
		x.mu.Lock()
		x.events.mask = v
		x.mu.Unlock()
	case f == nvme.FeatureKeepAlive:
		if !x.setKeepAlive(v) {
			st = nvme.KeepAliveInvalid | nvme.DNR
		}
	case x.sub == nil:
		st = nvme.InvalidField | nvme.DNR
	case f == nvme.FeatureQueues:
		if v&0xffff == 0xffff || v>>16 == 0xffff {
			st = nvme.InvalidField | nvme.DNR
		}
		k.result = (maxQueues - 1) | (maxQueues-1)<<16
	case f == nvme.FeatureHostID:
		st = nvme.SequenceError | nvme.DNR // Connect has said it (NVMe-oF 5.2)
	case f == nvme.FeatureWriteCache && v&1 == 1:
	case f == nvme.FeatureReservationNotice:
		st = x.mute(k.cmd.NSID(), v)
	case f == nvme.FeatureReservationKept:
		k.keepReservations(x, v&1 == 1)
		return
	case f == nvme.FeatureWriteCache, f == nvme.FeatureArbitration, f == nvme.FeaturePower, f == nvme.FeatureTemperature, f == nvme.FeatureErrorRecovery, f == nvme.FeatureAtomicity:
		st = nvme.FeatureNotChangeable | nvme.DNR
	default:
		st = nvme.InvalidField | nvme.DNR
	}
	k.end(st)
}

// mute sets which notices of reservations a host does not want.
func (x *controller) mute(nsid, mask uint32) nvme.Status {
	spaces := x.namespaces()
	if nsid != nvme.AllNamespaces && spaces[nsid] == nil {
		return nvme.InvalidNamespace | nvme.DNR
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.events.muted == nil {
		x.events.muted = map[uint32]uint32{}
	}
	for n := range spaces {
		if nsid == nvme.AllNamespaces || n == nsid {
			x.events.muted[n] = mask & 0xe
		}
	}
	return nvme.Success
}

// abort runs Abort (NVMe 5.1): an Asynchronous Event Request can be, and a command that waits for memory. What is at
// the storage or fetched from the host ends by itself.
func (k *command) abort(x *controller) {
	qid, id := uint16(k.cmd.DWord(10)), uint16(k.cmd.DWord(10)>>16)
	x.mu.Lock()
	c := x.queues[qid]
	var hit *command
	if qid == 0 {
		if i := slices.IndexFunc(x.events.waiting, func(o *command) bool { return o.cmd.ID() == id }); i >= 0 {
			hit = x.events.waiting[i]
			x.events.waiting = slices.Delete(x.events.waiting, i, i+1)
		}
	}
	x.mu.Unlock()
	if c != nil && hit == nil {
		hit = c.takeWaiting(id)
	}
	if hit == nil {
		k.result = 1
	} else {
		hit.endLater(nvme.AbortedByRequest)
	}
	k.end(nvme.Success)
}

// takeWaiting takes a command from those that wait for memory.
func (c *conn) takeWaiting(id uint16) (hit *command) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := c.waiting.Len(); n > 0; n-- {
		if k := c.waiting.Pop(); hit == nil && k.cmd.ID() == id {
			hit = k
		} else {
			c.waiting.Push(k)
		}
	}
	return hit
}
