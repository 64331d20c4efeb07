package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
)

// groups are all rows; old is another version of the program beside which this one is
// measured, if it is not "".
func groups(old string) []group {
	gs := []group{
		{name: "streams", rounds: 5, open: openStreams(700*time.Millisecond, streamContenders), rows: streamRows()},
		{name: "framing", rounds: 4, open: openStreams(350*time.Millisecond, streamContenders), rows: framingRows()},
		{name: "many streams", rounds: 5, open: openStreams(450*time.Millisecond, streamContenders), rows: manyRows()},
		{name: "programs of libibverbs", rounds: 3, open: openPrograms, rows: programRows()},
		{name: "programs of libibverbs with two processors for each end", rounds: 3, open: openWidePrograms, rows: []row{pinnedRow(2)}},
		{name: "memory and allocations", rounds: 1, open: openOwn, rows: slices.Concat(ownRows(), iscsiOwnRows(), directoryRows())},
		{name: "volumes", rounds: 3, open: openVolumes, rows: volumeRows()},
		{name: "fio", rounds: 3, open: openBlock(blockServersAnd(old)), rows: slices.Concat(fioRows(), versionRows(old), vhostRows())},
		{name: "iSCSI beside tgt", rounds: 3, open: openISCSI("tgtd", "tgtadm", "qemu-img"), rows: tgtRows()},
		{name: "iSCSI beside nbdkit", rounds: 3, open: openISCSI("qemu-img"), rows: nbdkitISCSIRows()},
		{name: "iSCSI digests", rounds: 3, open: openBlock(iscsiServers), rows: digestRows()},
		{name: "iSCSI initiators", rounds: 3, open: openISCSI("iscsi-perf"), rows: perfRows()},
		{name: "iSER", rounds: 3, open: openBlock(iserServers), rows: iserRows()},
		{name: "ESP", rounds: 4, open: openESP, rows: espRows()},
		{name: "disk through ESP", rounds: 3, open: openDiskHosts(lab.Config{}, (*diskHosts).espDisks), rows: espDiskRows()},
		{name: "shaped paths", rounds: 3, open: openDiskHosts(lab.Config{NoCharon: true}, (*diskHosts).shapedDisks), rows: shapedRows()},
		{name: "lost path", rounds: 3, open: openDiskHosts(lab.Config{NoCharon: true}, (*diskHosts).losingDisks), rows: lostPathRows()},
		{name: "attacks", rounds: 3, open: openAttacks, rows: attackRows()},
		{name: "soft-iWARP", rounds: 5, elsewhere: siwGuest.run, rows: siwRows()},
		{name: diskGuest.name, rounds: 3, elsewhere: diskGuest.run, rows: guestDiskRows()},
		{name: iscsiGuest.name, rounds: 3, elsewhere: iscsiGuest.run, rows: guestISCSIRows()},
	}
	return append(append(gs, sctpGroups()...), growthGroups()...)
}

var (
	sizes = []struct {
		name  string
		bytes int
	}{{"64 KiB", 64 << 10}, {"1 MiB", 1 << 20}}
	depths  = []int{1, 32}
	fpdus   = []int{1460, 4096, 8192, 16384, 32768, 65536}
	streams = []int{1, 4, 16, 64}
)

// streamRows are the lines of the table that one stream over loopback gives.
func streamRows() []row {
	tcpCPU := []ref{{"tcp 64 KiB", "cpu"}, {"tcp 1 MiB", "cpu"}}
	var rows []row
	for _, v := range []struct {
		variant
		aim float64
	}{{largeCRC, 0.9}, {largeNoCRC, 1.0}, {smallCRC, 0.7}} {
		for _, size := range sizes {
			name := "Write " + size.name + ", " + v.name
			rows = append(rows, row{name: name, unit: "GB/s", scale: 1e-9, ours: ref{name, "rate"}, rival: tcpRate, aim: v.aim})
		}
	}
	for _, v := range []variant{headersOf, allOf} {
		name := "Write 64 KiB, " + v.name
		rows = append(rows, row{name: name + " / not captured", unit: "GB/s", scale: 1e-9, ours: ref{name, "rate"}, rival: []ref{{"Write 64 KiB, " + largeCRC.name, "rate"}}})
	}
	for _, size := range sizes {
		rows = append(rows, row{name: "CPU per GB, Write " + size.name, unit: "s/GB", less: true, aim: 1.3,
			ours: ref{"Write " + size.name + ", " + largeCRC.name, "cpu"}, rival: tcpCPU, note: "both ends"})
	}
	rows = append(rows, row{name: "Send ping-pong 64 B, median", unit: "us", scale: 1e6, less: true, aim: 1.4,
		ours: ref{"ping-pong", "p50"}, rival: []ref{{"tcp ping-pong", "p50"}}},
		row{name: "Send ping-pong 64 B, spinning, median", unit: "us", scale: 1e6, less: true,
			ours: ref{"spinning ping-pong", "p50"}, rival: []ref{{"tcp ping-pong", "p50"}}, note: "the rival sleeps"},
		row{name: "Send ping-pong 64 B, polling with Progress / spinning", unit: "us", scale: 1e6, less: true,
			ours: ref{"progressed ping-pong", "p50"}, rival: []ref{{"spinning ping-pong", "p50"}}},
		row{name: "Send ping-pong 64 B, polling with Progress / without", unit: "us", scale: 1e6, less: true,
			ours: ref{"progressed ping-pong", "p50"}, rival: []ref{{"polled ping-pong", "p50"}}, note: "the rival has all processors at both ends"})
	for _, depth := range depths {
		rows = append(rows, row{name: fmt.Sprintf("Read 4 KiB, depth %d", depth), unit: "op/s", aim: 0.8,
			ours: ref{fmt.Sprintf("read depth %d", depth), "ops"}, rival: []ref{{fmt.Sprintf("tcp requests depth %d", depth), "ops"}}})
	}
	return append(rows, row{name: "Read 4 KiB of writable memory, depth 32", unit: "op/s",
		ours: ref{"writable read depth 32", "ops"}, rival: []ref{{"tcp requests depth 32", "ops"}}})
}

// tcpRate is the rival of Writes on one stream.
var tcpRate = []ref{{"tcp 64 KiB", "rate"}, {"tcp 1 MiB", "rate"}}

// fpduVariants are the framings of the FPDU rows, those without CRC last.
func fpduVariants() []variant {
	var vs []variant
	for _, crc := range []struct {
		name string
		off  bool
	}{{"CRC on", false}, {"CRC off", true}} {
		for _, size := range fpdus {
			vs = append(vs, variant{name: fmt.Sprintf("FPDU %d, %s", size, crc.name), noCRC: crc.off, emss: size})
		}
	}
	return vs
}

// markerVariants are those of the rows with markers. Nothing longer than 64 KiB
// with its markers can be pointed to.
func markerVariants() []variant {
	var vs []variant
	for _, size := range []int{1460, 65480} {
		vs = append(vs,
			variant{name: fmt.Sprintf("FPDU %d, CRC on", size), emss: size},
			variant{name: fmt.Sprintf("FPDU %d, CRC off", size), noCRC: true, emss: size})
	}
	return vs
}

// markedReads has markers from the server to the client, in FPDUs of what
// loopback takes.
var markedReads = variant{name: "loopback's segments, CRC on", markers: true}

const (
	markedReadDepth = 16
	markedReadsName = "Read 64 KiB with markers"
)

// framingRows are one stream of Writes in FPDUs of several sizes, and markers.
func framingRows() []row {
	var rows []row
	for _, v := range fpduVariants() {
		name := "Write 64 KiB, " + v.name
		rows = append(rows, row{name: name, unit: "GB/s", scale: 1e-9, ours: ref{name, "rate"}, rival: tcpRate})
	}
	for _, v := range markerVariants() {
		name := "Write 64 KiB with markers, " + v.name
		rows = append(rows, row{name: name, unit: "GB/s", scale: 1e-9, ours: ref{name, "rate"}, rival: tcpRate})
	}
	return append(rows, row{name: fmt.Sprintf("%s, depth %d", markedReadsName, markedReadDepth), unit: "GB/s", scale: 65536e-9, ours: ref{markedReadsName, "ops"},
		rival: []ref{{"tcp requests 64 KiB", "ops"}}})
}

// manyRows are several streams at once, and one that both ends write on.
func manyRows() []row {
	var rows []row
	for _, n := range streams {
		// Several streams keep both processors busy, so the ratio is that of
		// processor time, in which 1.3 times TCP's is the aim.
		name, aim := fmt.Sprintf("Write 64 KiB, %d streams", n), 1/1.3
		if n == 1 {
			name, aim = "Write 64 KiB, 1 stream", 0.9
		}
		rows = append(rows, row{name: name, unit: "GB/s", scale: 1e-9, aim: aim, ours: ref{fmt.Sprintf("%d streams", n), "rate"},
			rival: []ref{{fmt.Sprintf("%d tcp 64 KiB", n), "rate"}, {fmt.Sprintf("%d tcp 1 MiB", n), "rate"}}})
	}
	for _, v := range []variant{largeCRC, largeNoCRC, smallCRC} {
		rows = append(rows, row{name: "Write 64 KiB both ways, " + v.name, unit: "GB/s", scale: 1e-9, ours: ref{"both ways, " + v.name, "rate"},
			rival: []ref{{"tcp both ways 64 KiB", "rate"}, {"tcp both ways 1 MiB", "rate"}}})
	}
	return rows
}

// ownRows are the lines without a rival.
func ownRows() []row {
	rows := []row{{name: "memory per idle stream, 1,000 open", unit: "KiB", scale: 1.0 / 1024, less: true, absolute: true, aim: 20,
		ours: ref{"idle", "resident"}, note: "one end's share of the process's resident memory; the kernel's socket buffers are not in it"}}
	for _, op := range []string{"Write 64 KiB", "Send 64 B", "Read 4 KiB"} {
		rows = append(rows, row{name: "allocations per " + op, unit: "/op", less: true, absolute: true, ours: ref{"allocs", op},
			note: "both ends; fewer than one in 100 operations are shown as 0"})
	}
	return rows
}
