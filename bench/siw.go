package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/integration/vm"
)

// Linux' soft-iWARP (siw) as the rival, in a virtual machine: the host's side.

//go:embed guest.sh
var guestScript string

// siwRows are the lines in which siw is the rival. Both run in one virtual
// machine over the same virtual wire, whose MTU is 1500.
func siwRows() []row {
	var rows []row
	for _, crc := range []string{"CRC on", "CRC off"} {
		for _, framing := range []string{"FPDUs that fit the EMSS", "large FPDUs"} {
			note := "both send FPDUs that fit the EMSS"
			if framing == "large FPDUs" {
				note = "siw's FPDUs fit the EMSS, ours are as between two IronWarps"
			}
			rows = append(rows, row{name: "Write 64 KiB beside siw, " + framing + ", " + crc, unit: "MB/s", scale: 1e-6, aim: 1.0,
				ours: ref{"bandwidth, " + framing + ", " + crc, "rate"}, rival: []ref{{"siw bandwidth, " + crc, "rate"}}, note: note})
		}
	}
	for _, crc := range []string{"CRC on", "CRC off"} {
		rows = append(rows, row{name: "Write latency 64 B beside siw, " + crc, unit: "us", scale: 1e6, less: true, aim: 1.5,
			ours: ref{"latency, " + crc, "p50"}, rival: []ref{{"siw latency, " + crc, "p50"}}, note: "half of the median round trip"})
	}
	return append(rows,
		row{name: "ib_write_bw 64 KiB, ironwarp run / on siw", unit: "MB/s", scale: 1e-6, aim: 2, ours: ref{"ib_write_bw through run", "rate"}, rival: []ref{{"ib_write_bw on siw", "rate"}}, note: "the same program; FPDUs and CRC of each as it comes"},
		row{name: "ib_send_lat 64 B, ironwarp run / on siw", unit: "us", scale: 1e6, less: true, aim: 1.2, ours: ref{"ib_send_lat through run", "half"}, rival: []ref{{"ib_send_lat on siw", "half"}}, note: "half of the round trip"})
}

// guestTime is the longest that the virtual machine may take for a round.
const guestTime = 2 * time.Minute

// run boots the virtual machine and has this program measure in it.
func (g guest) run(ctx context.Context, b *bench, names []string, rounds int) ([]map[string]metrics, error) {
	if os.Geteuid() != 0 {
		return nil, leftOut("the virtual machine sees this machine's files, which takes root")
	}
	for _, program := range append([]string{"qemu-system-x86_64"}, g.programs...) {
		if _, err := exec.LookPath(program); err != nil {
			return nil, leftOut(fmt.Sprintf("%v; as root, make bench installs it", err))
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ironwarp, err := filepath.Abs(b.ironwarp)
	if err != nil {
		return nil, err
	}
	b.say("%s: the virtual machine", g.name)
	im, err := vm.Build(ctx, b.cache, os.Stderr)
	if err != nil {
		return nil, errors.Join(leftOut(err.Error()), ctx.Err())
	}
	out, err := os.MkdirTemp("", "ironwarp-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(out)
	b.say("%s: %d rounds in a virtual machine with Linux %s", g.name, rounds, im.Kernel)
	res, err := im.Run(ctx, out, g.command(self, ironwarp, names, rounds), vm.Options{Timeout: time.Duration(rounds+2) * guestTime, Memory: g.memory})
	if err != nil {
		return nil, err
	}
	if res.Status != 0 {
		return nil, fmt.Errorf("the script in the virtual machine ended with exit status %d:\n%s", res.Status, res.Output)
	}
	j, err := os.ReadFile(filepath.Join(out, guestRounds))
	if err != nil {
		return nil, err
	}
	var measured []map[string]metrics
	return measured, json.Unmarshal(j, &measured)
}

// command is the script for the virtual machine.
func (g guest) command(self, ironwarp string, names []string, rounds int) string {
	words := []string{self, "-ironwarp", ironwarp, "-role", g.role, "-rounds", fmt.Sprint(rounds), "-out", vm.OutDir + "/" + guestRounds}
	for i, w := range append(words, names...) {
		w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		if i < len(words) {
			words[i] = w
		} else {
			words = append(words, w)
		}
	}
	return "MODULES='" + g.modules + "'\n" + guestScript + g.script + "exec ip netns exec B " + strings.Join(words, " ") + "\n"
}
