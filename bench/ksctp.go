package main

import (
	"context"

	"github.com/ironwarp/ironwarp/transport"
)

// Linux' SCTP, in the virtual machine: this program's kernel may lack it.

const roleRDMAKernel = "rdma-sctp"

var sctpGuest = guest{name: "kernel SCTP", role: "guest-sctp", modules: "sctp", contenders: guestSCTPContenders}

// overKernel is a stream over the kernel's SCTP.
var overKernel = variant{name: "sctp", kind: transport.SCTP}

func kernelSCTPRows() []row {
	plain := []ref{{"plain socket 1400 B", "rate"}, {"large plain socket 1400 B", "rate"}}
	rows := []row{
		{name: "Write 64 KiB over sctp", ours: ref{"Writes over sctp", "rate"}, rival: plain, aim: 0.9, note: "messages of 1400 bytes on a plain SCTP socket"},
		{name: "Write 64 KiB over sctp-udp", ours: ref{"Writes over sctp-udp", "rate"}, rival: plain, note: "the same; ours does not use the kernel's SCTP"},
		{name: "Write 64 KiB over tcp", ours: ref{"Writes over tcp", "rate"}, rival: plain, note: "the same"},
		{name: "Write 64 KiB over sctp, 64 KiB messages", ours: ref{"Writes over sctp", "rate"}, rival: []ref{{"plain socket 64 KiB", "rate"}, {"large plain socket 64 KiB", "rate"}}, note: "messages of 64 KiB on a plain SCTP socket, cut and joined by the kernel"},
	}
	for i := range rows {
		rows[i].name += ", beside a plain SCTP socket"
		rows[i].unit, rows[i].scale = "MB/s", 1e-6
	}
	return rows
}

// guestSCTPContenders are the contenders of kernelSCTPRows and the servers in
// namespace A that they need.
func guestSCTPContenders(*bench) ([]*peer, map[string]func(context.Context) (metrics, error)) {
	plain, large := guestPeer(rolePlainSCTP), guestPeer(rolePlainLarge)
	kernel, udp, tcp := guestPeer(roleRDMAKernel), guestPeer(roleRDMASCTP), guestPeer(roleRDMA)
	return []*peer{plain, large, kernel, udp, tcp}, map[string]func(context.Context) (metrics, error){
		"plain socket 1400 B":       plainMessages(plain, 0, sctpMessage),
		"plain socket 64 KiB":       plainMessages(plain, 0, 64<<10),
		"large plain socket 1400 B": plainMessages(large, plainLarge, sctpMessage),
		"large plain socket 64 KiB": plainMessages(large, plainLarge, 64<<10),
		"Writes over sctp":          rdmaStreams(kernel, overKernel, 1, 64<<10, targetSize),
		"Writes over sctp-udp":      rdmaStreams(udp, overSCTP, 1, 64<<10, targetSize),
		"Writes over tcp":           rdmaStreams(tcp, largeCRC, 1, 64<<10, targetSize),
	}
}
