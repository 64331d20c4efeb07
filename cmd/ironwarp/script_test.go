package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport/ksctp"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"ironwarp": main})
}

// TestScripts runs the command line as a person would; each file in testdata is
// one story. They need no root.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup:               func(env *testscript.Env) error { return setUpHosts(t, env) },
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "root":
				return os.Geteuid() == 0, nil
			case "ksctp": // the kernel has SCTP
				return ksctp.Available() == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exists-soon": existsSoon, "await": await, "completes": completes, "shows": shows, "listening": listening, "image": image, "lose-writes": loseWrites, "as": as},
	})
}

// setUpHosts gives a script two hosts on loopback, alpha and beta: $ALPHA_PORT,
// $ALPHA_UDP_PORT, $ALPHA_SOCKET, alpha/ironwarp.yaml, and the same for beta.
func setUpHosts(t *testing.T, env *testscript.Env) error {
	// The sockets' paths have to be short.
	run, err := os.MkdirTemp("", "iw")
	if err != nil {
		return err
	}
	env.Defer(func() { os.RemoveAll(run) })
	for _, h := range []string{"alpha", "beta"} {
		port, udp := iwarptest.FreePort(t), iwarptest.FreeUDPPort(t)
		dir := filepath.Join(env.WorkDir, h)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		conf := fmt.Sprintf("listen: {port: %d, udp_port: %d}\nstate_dir: state\nruntime_dir: %s\nipsec: {vici: \"unix://%s/no-charon\"}\n", port, udp, filepath.Join(run, h), run)
		if err := os.WriteFile(filepath.Join(dir, "ironwarp.yaml"), []byte(conf), 0o600); err != nil {
			return err
		}
		name := map[string]string{"alpha": "ALPHA", "beta": "BETA"}[h]
		env.Setenv(name+"_PORT", fmt.Sprint(port))
		env.Setenv(name+"_UDP_PORT", fmt.Sprint(udp))
		env.Setenv(name+"_SOCKET", filepath.Join(run, h, "ironwarp.sock"))
		env.Setenv(name+"_RUN", filepath.Join(run, h))
	}
	return nil
}

// awaitTime bounds waiting for a daemon; it is up within milliseconds.
const awaitTime = 2 * time.Minute

// await SOCKET [DISK] waits until the daemon at a socket answers, and has a disk
// attached and ready. With ! it waits until nobody answers.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: await SOCKET [DISK]")
	}
	ctx, cancel := context.WithTimeout(context.Background(), awaitTime)
	defer cancel()
	cl := api.NewClient(args[0])
	defer cl.Close()
	for {
		list, err := cl.Attachments(ctx)
		ok := err == nil
		if len(args) == 2 {
			ok = false
			for _, at := range list {
				ok = ok || at.Name() == args[1] && at.State == api.AttachReady
			}
		}
		if ok != neg {
			return
		}
		select {
		case <-ctx.Done():
			ts.Fatalf("await %v: %v %+v", args, err, list)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// completes WORDS... asks ironwarp to complete what stands behind these words, until it
// has candidates: the shell's user is offered none where the daemon is not at once there.
func completes(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: completes WORDS...")
	}
	for end := time.Now().Add(awaitTime); ; {
		ts.Check(ts.Exec("ironwarp", append(args, completeFlag)...))
		switch {
		case ts.ReadFile("stdout") != "":
			return
		case time.Now().After(end):
			ts.Fatalf("completes %v: nothing was offered", args)
		}
	}
}

// shows REGEXP WORDS... runs ironwarp until a line of what it prints matches.
func shows(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: shows REGEXP WORDS...")
	}
	line := regexp.MustCompile("(?m)" + args[0])
	for end := time.Now().Add(awaitTime); ; {
		ts.Check(ts.Exec("ironwarp", args[1:]...))
		switch {
		case line.MatchString(ts.ReadFile("stdout")):
			return
		case time.Now().After(end):
			ts.Fatalf("shows %v: the last was %s", args, ts.ReadFile("stdout"))
		}
	}
}

// exists-soon FILE waits until a file is there.
func existsSoon(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), awaitTime)
	defer cancel()
	for {
		if _, err := os.Lstat(ts.MkAbs(args[0])); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			ts.Fatalf("exists-soon %v: it does not", args)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// listening ADDRESS waits until a server accepts connections.
func listening(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), awaitTime)
	defer cancel()
	for {
		c, err := net.Dial("tcp", args[0])
		if err == nil {
			c.Close()
			return
		}
		select {
		case <-ctx.Done():
			ts.Fatalf("listening %v: %v", args, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// as USER COMMAND... runs ironwarp as the user of that number, without groups. The
// sockets of both hosts can be reached by him then, as they can in /run.
func as(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: as USER COMMAND...")
	}
	run := filepath.Dir(ts.Getenv("ALPHA_RUN"))
	bin := filepath.Join(run, "bin", "ironwarp")
	if _, err := os.Stat(bin); err != nil {
		exe, err := os.Executable()
		ts.Check(err)
		data, err := os.ReadFile(exe)
		ts.Check(err)
		ts.Check(os.Mkdir(filepath.Dir(bin), 0o755))
		ts.Check(os.WriteFile(bin, data, 0o755))
		ts.Check(os.Chmod(run, 0o755))
	}
	err := ts.Exec("setpriv", append([]string{"--reuid=" + args[0], "--regid=" + args[0], "--clear-groups", bin}, args[1:]...)...)
	if (err != nil) != neg {
		ts.Fatalf("as %v: %v", args, err)
	}
}

// image FILE BYTES makes a disk image of so many bytes that are no zeroes.
func image(ts *testscript.TestScript, _ bool, args []string) {
	var n int
	if len(args) != 2 {
		ts.Fatalf("usage: image FILE BYTES")
	}
	if _, err := fmt.Sscan(args[1], &n); err != nil {
		ts.Fatalf("image: %v", err)
	}
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*7 + i>>9)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o600))
}

// lose-writes FILE makes an exported file, whose daemon has ended, one that lost writes.
func loseWrites(ts *testscript.TestScript, _ bool, args []string) {
	const attr = "user.ironwarp.disk"
	if len(args) != 1 {
		ts.Fatalf("usage: lose-writes FILE")
	}
	file, record := ts.MkAbs(args[0]), make([]byte, 4096)
	n, err := unix.Getxattr(file, attr, record)
	ts.Check(err)
	lost := strings.Replace(string(record[:n]), `"open":false`, `"open":true,"fault":{"errno":5,"call":"fdatasync","time":"2026-11-22T10:00:00Z"}`, 1)
	ts.Check(unix.Setxattr(file, attr, []byte(lost), unix.XATTR_REPLACE))
}
