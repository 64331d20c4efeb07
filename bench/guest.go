package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What runs inside a virtual machine, in namespace B; Linux' soft-iWARP (siw) as
// the rival.

const (
	guestRounds = "rounds.json" // where a guest leaves what it has measured
	guestServer = "10.9.0.1"    // in namespace A
	siwCRC      = "/sys/module/siw/parameters/mpa_crc_required"
)

// guest is a virtual machine in which this program measures, in a role.
type guest struct {
	name     string
	role     string
	modules  string
	script   string   // further lines, run as root in the machine
	programs []string // of this machine that run in it
	memory   int      // of the machine in MiB, 0 for what it mostly has
	// contenders are those that it can measure and their servers.
	contenders func(*bench) ([]*peer, map[string]func(context.Context) (metrics, error))
	// open, if not nil, starts what the contenders need in place of contenders, and returns
	// those of names.
	open func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error)
}

var siwGuest = guest{
	name: "soft-iWARP", role: "guest", modules: "siw rdma_ucm ib_uverbs", programs: []string{"ib_write_bw", "ib_send_lat"}, contenders: siwContenders,
	script: `ip netns exec A rdma link add siwa type siw netdev va || fail "there is no siw"
ip netns exec B rdma link add siwb type siw netdev vb || fail "there is no siw"
`,
}

// guests are all of them, by their roles.
func guests() map[string]guest {
	return map[string]guest{siwGuest.role: siwGuest, sctpGuest.role: sctpGuest, diskGuest.role: diskGuest, iscsiGuest.role: iscsiGuest}
}

// measure runs the rounds of the named contenders and writes them to path.
func (g guest) measure(ctx context.Context, b *bench, names []string, rounds int, path string) error {
	open := g.open
	if open == nil {
		open = g.serve
	}
	cs, closer, err := open(ctx, b, names)
	if err != nil {
		return err
	}
	measured, err := turns(ctx, cs, 1, rounds, func(int) {})
	if err := errors.Join(err, closer.Close()); err != nil {
		return err
	}
	j, err := json.Marshal(measured)
	if err != nil {
		return err
	}
	return os.WriteFile(path, j, 0o644)
}

// serve starts the servers of contenders.
func (g guest) serve(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
	var open closers
	servers, all := g.contenders(b)
	for _, p := range servers {
		if err := p.start(ctx, b); err != nil {
			return nil, nil, errors.Join(err, open.Close())
		}
		open = append(open, p)
	}
	var cs []contender
	for _, n := range names {
		run, ok := all[n]
		if !ok {
			return nil, nil, errors.Join(fmt.Errorf("no contender %q", n), open.Close())
		}
		cs = append(cs, contender{n, run})
	}
	return cs, open, nil
}

// guestPeer is a server in namespace A.
func guestPeer(role string) *peer {
	return newPeer(role, guestServer+":0", time.Second, "ip", "netns", "exec", "A")
}

// siwContenders are all contenders of the siw rows. Those of latency spin, as
// perftest does.
func siwContenders(b *bench) ([]*peer, map[string]func(context.Context) (metrics, error)) {
	server, spins := guestPeer(roleRDMA), guestPeer(roleSpin)
	all := make(map[string]func(context.Context) (metrics, error))
	for _, crc := range []struct {
		name string
		siw  string
		off  bool
	}{{"CRC on", "1", false}, {"CRC off", "0", true}} {
		fitting, large := variant{noCRC: crc.off}, variant{noCRC: crc.off, large: largeFPDU}
		all["bandwidth, FPDUs that fit the EMSS, "+crc.name] = rdmaSingly(server, fitting, 64<<10)
		all["bandwidth, large FPDUs, "+crc.name] = rdmaSingly(server, large, 64<<10)
		all["latency, "+crc.name] = onOneProcessor(rdmaNotices(spins, variant{noCRC: crc.off, spin: spinTime}))
		all["siw bandwidth, "+crc.name] = func(ctx context.Context) (metrics, error) {
			mib, err := perftest(ctx, crc.siw, 3, "ib_write_bw", "-n", "400", "-s", "65536", "-t", strconv.Itoa(window/(64<<10)))
			return metrics{"rate": mib * (1 << 20)}, err // perftest's MB are MiB
		}
		all["siw latency, "+crc.name] = func(ctx context.Context) (metrics, error) {
			typical, err := perftest(ctx, crc.siw, 4, "ib_write_lat", "-n", "4000", "-s", strconv.Itoa(noticeSize))
			return metrics{"p50": typical * 1e-6}, err
		}
	}
	inA := []string{"ip", "netns", "exec", "A"}
	for _, name := range []string{"ib_write_bw", "ib_send_lat"} {
		all[name+" through run"] = func(ctx context.Context) (metrics, error) {
			run := []string{b.ironwarp, "run", "--lab", "--peer", guestServer, "--peer", guestClient, "--"}
			return runPerftestAt(ctx, name, guestServer, slices.Concat(inA, run), run)
		}
		all[name+" on siw"] = func(ctx context.Context) (m metrics, err error) {
			if err := os.WriteFile(siwCRC, []byte("1"), 0o644); err != nil {
				return nil, err
			}
			for range perftestTries {
				if m, err = runPerftestAt(ctx, name, guestServer, inA, nil); err == nil {
					break
				}
			}
			return m, err
		}
	}
	return []*peer{server, spins}, all
}

// perftestTries is how often one of perftest's programs is run at most. On a
// busy machine it may fail to find out how fast the processor's clock is, and
// then all it reports is infinite; and a client may come between the two
// listeners, one for each device, that siw opens for a server.
const perftestTries = 5

// perftest runs one of perftest's programs and returns a column of its report.
func perftest(ctx context.Context, crc string, column int, program string, args ...string) (v float64, err error) {
	if err := os.WriteFile(siwCRC, []byte(crc), 0o644); err != nil {
		return 0, err
	}
	for range perftestTries {
		var out string
		if out, err = perftestOnce(ctx, program, append([]string{"-R"}, args...)); err != nil {
			continue
		}
		if v, err = reported(out, column); err == nil && (v <= 0 || math.IsInf(v, 0)) {
			err = fmt.Errorf("%s reports %v", program, v)
		}
		if err == nil {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%d times, at last: %w", perftestTries, err)
}

// perftestOnce runs a program as server in A and as client here and returns
// what the client prints. A port of its own keeps it apart from what an earlier
// server's siw has not closed yet.
func perftestOnce(ctx context.Context, program string, args []string) (string, error) {
	port := 20000 + rand.IntN(10000)
	args = append(args, "-p", strconv.Itoa(port))
	server, err := startProcess("ip", append([]string{"netns", "exec", "A", program, "-d", "siwa"}, args...)...)
	if err != nil {
		return "", err
	}
	defer server.Close()
	if err := server.ready(ctx, func() error { return listening(server.pid(), port) }); err != nil {
		return "", fmt.Errorf("%s: %w", program, err)
	}
	out, err := exec.CommandContext(ctx, program, append(append([]string{"-d", "siwb"}, args...), guestServer)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, out)
	}
	return string(out), nil
}

// listening reports whether something listens on a TCP port in the namespace of
// process pid.
func listening(pid, port int) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		return err
	}
	if !regexp.MustCompile(fmt.Sprintf(`:%04X [0-9A-F:]+ 0A `, port)).Match(b) {
		return fmt.Errorf("nothing listens on port %d", port)
	}
	return nil
}

// reported is the number in a column of perftest's report: of the last line
// that begins with two whole numbers, the size and the iterations.
func reported(out string, column int) (float64, error) {
	var last []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) > column && isWhole(f[0]) && isWhole(f[1]) {
			last = f
		}
	}
	if last == nil {
		return 0, errors.New("perftest's report is not understood: " + out)
	}
	return strconv.ParseFloat(last[column], 64)
}

func isWhole(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}
