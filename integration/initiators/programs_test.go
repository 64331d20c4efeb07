package initiators

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/node"
)

// commandTime bounds a program in the machine, which is slow where its processor is emulated.
const commandTime = 3 * time.Minute

// serverless is what a client is left to end by itself, when its server has ended.
const serverless = 40 * time.Second

// TestProgramsAndSiw: programs of librdmacm under `ironwarp run` and the same ones on soft-iWARP, in another namespace, in both roles.
func TestProgramsAndSiw(t *testing.T) {
	t.Attr("row", "rping, perftest, rstream and rdma_client under `ironwarp run`, with themselves on soft-iWARP at the other end, in both roles")
	if os.Getenv(insideVar) == "" {
		dir := t.TempDir()
		program, err := node.Build(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, program := range []string{"rping", "ib_send_bw"} {
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("needs %s: apt-get install perftest rdmacm-utils", program)
			}
		}
		build := exec.CommandContext(t.Context(), "go", "run", "./internal/tools/rdmalib", "-out", filepath.Join(filepath.Dir(program), "rdma"))
		build.Dir = "../.."
		if out, err := build.CombinedOutput(); err != nil {
			t.Skipf("%v: %s", err, out)
		}
		t.Setenv(programVar, program)
	}
	if _, ran := inMachine(t, programVar); ran {
		return
	}
	for _, args := range [][]string{
		{"rdma", "link", "delete", "siwa"}, // a listener on all addresses would listen by both, and find the port taken
		{"ip", "netns", "exec", "B", "rdma", "link", "add", "siwb", "type", "siw", "netdev", "vb0"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	siw := []string{"ip", "netns", "exec", "B"}
	log := filepath.Join(t.TempDir(), "log") // of ours
	ours := []string{os.Getenv(programVar), "run", "--lab", "--peer", "10.9.0.2", "--log", log, "--"}
	// By -F perftest makes its report also where it has not found out how fast the processor's clock is, as in an emulated machine.
	for _, x := range []struct{ name, server, client, want string }{
		{"rping", "rping -s -a ADDRESS -p PORT -C 5", "rping -c -v -a ADDRESS -p PORT -C 5", "rdma-ping-4"},
		{"ib_send_bw", "ib_send_bw -F -R -p PORT -n 500", "ib_send_bw -F -R -p PORT -n 500 ADDRESS", "65536      500"},
		{"ib_write_bw", "ib_write_bw -F -R -p PORT -n 500", "ib_write_bw -F -R -p PORT -n 500 ADDRESS", "65536      500"},
		{"ib_read_bw", "ib_read_bw -F -R -p PORT -n 500", "ib_read_bw -F -R -p PORT -n 500 ADDRESS", "65536      500"},
		{"rstream", "rstream -b ADDRESS -p PORT -S 65536 -C 100 -T v", "rstream -s ADDRESS -p PORT -S 65536 -C 100 -T v", "64k"},
		{"rdma_client", "rdma_server -s ADDRESS -p PORT", "rdma_client -s ADDRESS -p PORT", "rdma_client: end 0"},
		{"ib_send_lat", "ib_send_lat -F -R -p PORT -n 500", "ib_send_lat -F -R -p PORT -n 500 ADDRESS", "2       500"},
	} {
		for _, role := range []struct {
			name           string
			server, client []string
			address        string // of the server
		}{{"client", siw, ours, "10.9.0.2"}, {"server", ours, siw, "10.9.0.1"}} {
			t.Run(x.name+", as "+role.name, func(t *testing.T) {
				// An error of rping's own, until release 59 (rdma-core, f3ae6534).
				raced := func(said []byte) bool { return bytes.Contains(said, []byte("rdma_get_cm_event: Bad file descriptor")) }
				t.Cleanup(func() {
					if text, err := os.ReadFile(log); t.Failed() {
						t.Logf("what IronWarp has logged: %v\n%s", err, text)
					}
					_ = os.Remove(log)
				})
				both := func() (client, server ended) {
					return meet(t, role.server, strings.Fields(x.server), role.client, strings.Fields(x.client), role.address, x.want, role.name == "server")
				}
				client, server := both()
				for n := 1; n < 5 && resetAtItsEnd(x.name, x.want, client, server, log); n++ {
					_ = os.Remove(log)
					client, server = both()
				}
				if client.err != nil && !raced(client.said) || !bytes.Contains(client.said, []byte(x.want)) {
					t.Fatalf("the client: %v\n%s\nthe server:\n%s", client.err, client.said, server.said)
				}
				if server.err != nil && !raced(server.said) {
					t.Errorf("the server: %v\n%s", server.err, server.said)
				}
			})
		}
	}
}

// resetAtItsEnd reports that soft-iWARP has ended rstream's stream by a reset, as its server, which has all, has closed it before it had
// read the client's last word, that it has room again. What it had sent is lost by that, and the client, which takes an end for
// "not yet", asks for it for ever.
func resetAtItsEnd(name, want string, client, server ended, log string) bool {
	text, _ := os.ReadFile(log)
	return name == "rstream" && client.err != nil && server.err == nil && bytes.Contains(server.said, []byte(want)) && bytes.Contains(text, []byte("connection lost while receiving"))
}

// ended is a program that has ended, and what it has said.
type ended struct {
	said []byte
	err  error
}

// meet runs two programs, behind commands that run them, of which the client says what is wanted. ADDRESS and PORT in their
// arguments are the server's. It waits for a server that is in this host's tables, and no longer for one that has ended.
func meet(t *testing.T, serverRun, server, clientRun, client []string, address, want string, inTables bool) (c, s ended) {
	t.Helper()
	const port = "7700"
	line := func(run, args []string) (cmd *exec.Cmd, kill func()) {
		ctx, cancel := context.WithTimeout(t.Context(), commandTime)
		t.Cleanup(cancel)
		all := slices.Concat(run, args)
		for i := range all {
			all[i] = strings.NewReplacer("ADDRESS", address, "PORT", port).Replace(all[i])
		}
		cmd = exec.CommandContext(ctx, all[0], all[1:]...)
		cmd.WaitDelay = time.Second
		return cmd, cancel
	}
	p, killServer := line(serverRun, server)
	var said bytes.Buffer
	p.Stdout, p.Stderr = &said, &said
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{}) // the server
	go func() {
		s.err = p.Wait()
		s.said = said.Bytes()
		close(over)
	}()
	// Soft-iWARP's listeners are in no table: a client that comes too early is refused, and comes again. Ours are, and
	// rping on soft-iWARP hangs when it is refused.
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	done := false
	for late := time.Now().Add(commandTime); time.Now().Before(late); {
		<-again.C
		select {
		case <-over: // whoever comes now comes in vain
			return c, s
		default:
		}
		if inTables && !isListening(t, port) {
			continue
		}
		began := time.Now()
		dialled := make(chan struct{})
		cmd, kill := line(clientRun, client)
		go func() {
			select {
			case <-dialled:
			case <-over:
				select {
				case <-dialled:
				case <-time.After(serverless):
					kill()
				}
			}
		}()
		c.said, c.err = cmd.CombinedOutput()
		close(dialled)
		done = (c.err == nil || bytes.Contains(c.said, []byte("Bad file descriptor"))) && bytes.Contains(c.said, []byte(want))
		if done || inTables || time.Since(began) > commandTime { // who has found a listener is not refused
			break
		}
	}
	if !done {
		killServer() // it may wait for a client for ever
	}
	<-over
	return c, s
}

// isListening reports whether somebody listens on a TCP port of this host.
func isListening(t *testing.T, port string) bool {
	t.Helper()
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) && f[3] == "0A" {
			return true
		}
	}
	return false
}
