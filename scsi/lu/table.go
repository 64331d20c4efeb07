package lu

import (
	"encoding/binary"
	"slices"

	"github.com/ironwarp/ironwarp/scsi"
)

// command describes a command: its row in REPORT SUPPORTED OPERATION CODES, and what it does.
type command struct {
	opcode  byte
	action  int    // its service action, -1: none
	usage   []byte // the CDB's bits that have a meaning, without the operation code
	flags   flags
	prepare func(t *Task)
	run     func(t *Task)
}

type flags uint8

const (
	always  flags = 1 << iota // also with a unit attention, and for a unit that there is not
	medium                    // needs a medium
	writes                    // changes it
	reads                     // reads what a reservation may keep from others
	anyone                    // no reservation stands against it
	changes                   // changes the unit's state: a reservation for writing stands against it
)

const none = -1

// commands is the table of all commands. It is filled by init, as some of them report it.
var commands []command

// byOpcode finds the commands of an operation code in the table.
var byOpcode [256][]*command

func init() {
	b := func(n int, set ...byte) []byte { // the bits of a CDB by pairs of position and mask
		u := make([]byte, n)
		for i := 0; i < len(set); i += 2 {
			u[set[i]-1] = set[i+1]
		}
		return u
	}
	ten := func(first byte) []byte { return []byte{first, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 7} }
	twelve := func(first byte) []byte {
		return []byte{first, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 7}
	}
	sixteen := func(first byte) []byte {
		return []byte{first, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 7}
	}
	six := []byte{0x1f, 0xff, 0xff, 0xff, 7}
	commands = []command{
		{scsi.TestUnitReady, none, b(5, 5, 7), medium | anyone, noData, (*Task).testUnitReady},
		{scsi.RequestSense, none, b(5, 1, 1, 4, 0xff, 5, 7), always | anyone, byteAllocation, (*Task).requestSense},
		{scsi.Inquiry, none, []byte{1, 0xff, 0xff, 0xff, 7}, always | anyone, wordAllocation(3), (*Task).inquiry},
		{scsi.ReportLUNs, none, []byte{0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 7}, always | anyone, longAllocation(6), (*Task).reportLUNs},
		{scsi.ModeSense6, none, []byte{8, 0xff, 0xff, 0xff, 7}, reads, byteAllocation, (*Task).modeSense},
		{scsi.ModeSense10, none, []byte{0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 7}, reads, wordAllocation(7), (*Task).modeSense},
		{scsi.ModeSelect6, none, []byte{0x11, 0, 0, 0xff, 7}, changes, modeList, (*Task).modeSelect},
		{scsi.ModeSelect10, none, []byte{0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 7}, changes, modeList, (*Task).modeSelect},
		{scsi.StartStopUnit, none, []byte{1, 0, 0x0f, 0xf7, 7}, changes, noData, (*Task).startStop},
		{scsi.PreventAllow, none, []byte{0, 0, 0, 3, 7}, changes, noData, (*Task).prevent},
		{scsi.ReadCapacity10, none, []byte{0, 0, 0, 0, 0, 0, 0, 0, 7}, medium | anyone, fixedAllocation(8), (*Task).readCapacity10},
		{scsi.ServiceActionIn16, scsi.ReadCapacity16, []byte{0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 7}, medium | anyone, longAllocation(10), (*Task).readCapacity16},
		{scsi.ServiceActionIn16, scsi.GetLBAStatus, []byte{0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 7}, medium | reads, statusAllocation, (*Task).lbaStatus},
		{scsi.MaintenanceIn, scsi.ReportTargetPortGroups, []byte{0x2a, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 7}, anyone, longAllocation(6), (*Task).portGroups},
		{scsi.MaintenanceIn, scsi.ReportSupportedOperations, []byte{0x0c, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 7}, anyone, longAllocation(6), (*Task).supportedCommands},
		{scsi.MaintenanceIn, scsi.ReportSupportedTMFs, []byte{0x0d, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 7}, anyone, longAllocation(6), (*Task).supportedTMFs},

		{scsi.Read6, none, six, medium | reads, transfer(false), (*Task).read},
		{scsi.Read10, none, ten(0xf8), medium | reads, transfer(false), (*Task).read},
		{scsi.Read12, none, twelve(0xf8), medium | reads, transfer(false), (*Task).read},
		{scsi.Read16, none, sixteen(0xf8), medium | reads, transfer(false), (*Task).read},
		{scsi.Write6, none, six, medium | writes, transfer(true), (*Task).write},
		{scsi.Write10, none, ten(0xf8), medium | writes, transfer(true), (*Task).write},
		{scsi.Write12, none, twelve(0xf8), medium | writes, transfer(true), (*Task).write},
		{scsi.Write16, none, sixteen(0xf8), medium | writes, transfer(true), (*Task).write},
		{scsi.WriteVerify10, none, ten(0xf6), medium | writes, transfer(true), (*Task).writeVerify},
		{scsi.WriteVerify12, none, twelve(0xf6), medium | writes, transfer(true), (*Task).writeVerify},
		{scsi.WriteVerify16, none, sixteen(0xf6), medium | writes, transfer(true), (*Task).writeVerify},
		{scsi.Verify10, none, ten(0xf6), medium | reads, prepareVerify, (*Task).verify},
		{scsi.Verify12, none, twelve(0xf6), medium | reads, prepareVerify, (*Task).verify},
		{scsi.Verify16, none, sixteen(0xf6), medium | reads, prepareVerify, (*Task).verify},
		{scsi.PreFetch10, none, ten(2), medium | reads, wholeRange, (*Task).prefetch},
		{scsi.PreFetch16, none, sixteen(2), medium | reads, wholeRange, (*Task).prefetch},
		{scsi.SynchronizeCache10, none, ten(6), medium | changes, wholeRange, (*Task).synchronize},
		{scsi.SynchronizeCache16, none, sixteen(6), medium | changes, wholeRange, (*Task).synchronize},
		{scsi.WriteSame10, none, ten(0xf8), medium | writes, prepareSame, (*Task).writeSame},
		{scsi.WriteSame16, none, sixteen(0xf9), medium | writes, prepareSame, (*Task).writeSame},
		{scsi.Unmap, none, []byte{1, 0, 0, 0, 0, 0x1f, 0xff, 0xff, 7}, medium | writes, parameterWord(7), (*Task).unmap},
		{scsi.CompareAndWrite, none, []byte{0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0x1f, 7}, medium | writes, prepareCompare, (*Task).compareAndWrite},
		{scsi.OrWrite16, none, sixteen(0xf8), medium | writes, transfer(true), (*Task).orWrite},
		{scsi.ReadDefectData10, none, []byte{0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 7}, medium | reads, wordAllocation(7), (*Task).defects},
		{scsi.ReadDefectData12, none, []byte{0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 7}, medium | reads, longAllocation(6), (*Task).defects},

		{scsi.ExtendedCopy, 0, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 7}, changes, copyList, (*Task).extendedCopy},
		{scsi.ReceiveCopyResults, scsi.CopyStatus, []byte{0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 7}, reads, longAllocation(10), (*Task).copyStatus},
		{scsi.ReceiveCopyResults, scsi.CopyParameters, []byte{3, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 7}, reads, longAllocation(10), (*Task).copyParameters},
		{scsi.ReceiveCopyResults, scsi.CopyFailure, []byte{4, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 7}, reads, longAllocation(10), (*Task).copyFailure},

		{scsi.Sanitize, scsi.Overwrite, []byte{0xa1, 0, 0, 0, 0, 0, 0xff, 0xff, 7}, medium | writes, prepareSanitize, (*Task).sanitize},
		{scsi.Sanitize, scsi.BlockErase, []byte{0xa2, 0, 0, 0, 0, 0, 0xff, 0xff, 7}, medium | writes, prepareSanitize, (*Task).sanitize},
		{scsi.Sanitize, scsi.ExitFailureMode, []byte{0x1f, 0, 0, 0, 0, 0, 0xff, 0xff, 7}, medium | writes, prepareSanitize, (*Task).exitFailureMode},

		{scsi.Reserve6, none, b(5, 5, 7), anyone, (*Task).excludeState, (*Task).reserve6},
		{scsi.Release6, none, b(5, 5, 7), anyone, (*Task).excludeState, (*Task).release6},
	}
	in := []byte{0, 0, 0, 0, 0, 0, 0xff, 0xff, 7}
	for _, action := range []byte{scsi.ReadKeys, scsi.ReadReservation, scsi.ReportCapabilities, scsi.ReadFullStatus} {
		u := append([]byte{action}, in[1:]...)
		commands = append(commands, command{scsi.PersistentReserveIn, int(action), u, anyone, wordAllocation(7), (*Task).persistentIn})
	}
	for _, action := range []byte{scsi.Register, scsi.Reserve, scsi.Release, scsi.Clear, scsi.Preempt, scsi.PreemptAndAbort, scsi.RegisterAndIgnore, scsi.RegisterAndMove} {
		u := []byte{action, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 7}
		commands = append(commands, command{scsi.PersistentReserveOut, int(action), u, anyone, preparePersistent, (*Task).persistentOut})
	}
	for i := range commands {
		c := &commands[i]
		byOpcode[c.opcode] = append(byOpcode[c.opcode], c)
	}
}

// find returns the command of a CDB, nil if the unit has none.
func (u *Unit) find(cdb *[16]byte) *command {
	for _, c := range byOpcode[cdb[0]] {
		if (c.action == none || c.action == int(scsi.ServiceAction(cdb[:]))) && u.has(c) {
			return c
		}
	}
	return nil
}

// has reports whether the unit has a command: all have all of them, but for SANITIZE.
func (u *Unit) has(c *command) bool {
	return c.opcode != scsi.Sanitize || u.cfg.Sanitize != "" && (c.action != scsi.BlockErase || u.canZero())
}

func (u *Unit) knows(opcode byte) bool { return slices.ContainsFunc(byOpcode[opcode], u.has) }

func noData(*Task) {}

// allocate sets the length of what the initiator gets. None at all is no error.
func (t *Task) allocate(n uint32) { t.Length = min(n, maxParameters) }

func byteAllocation(t *Task) { t.allocate(uint32(t.CDB[4])) }

func fixedAllocation(n uint32) func(*Task) { return func(t *Task) { t.allocate(n) } }

func wordAllocation(at int) func(*Task) {
	return func(t *Task) { t.allocate(uint32(binary.BigEndian.Uint16(t.CDB[at:]))) }
}

func longAllocation(at int) func(*Task) {
	return func(t *Task) { t.allocate(binary.BigEndian.Uint32(t.CDB[at:])) }
}

func parameterWord(at int) func(*Task) {
	return func(t *Task) { t.Out, t.Length = true, uint32(binary.BigEndian.Uint16(t.CDB[at:])) }
}

func parameterLong(at int) func(*Task) {
	return func(t *Task) {
		t.Out = true
		if t.Length = binary.BigEndian.Uint32(t.CDB[at:]); t.Length > maxParameters {
			t.refuse(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.ParameterListLength})
		}
	}
}

func modeList(t *Task) {
	if t.CDB[0] == scsi.ModeSelect6 {
		t.Out, t.Length = true, uint32(t.CDB[4])
	} else {
		t.Out, t.Length = true, uint32(binary.BigEndian.Uint16(t.CDB[7:]))
	}
	if t.CDB[1]&1 != 0 { // SP
		t.refuse(invalidField(1))
	}
}
