package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/invite"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// newAnswering is a joint whose person answers by in, each answer after the next of the pauses.
func newAnswering(in io.Reader, person bool, pauses ...time.Duration) (*joint, *bytes.Buffer) {
	out := new(bytes.Buffer)
	at, asks := time.Unix(0, 0), true
	return &joint{w: &ironwarp{stdin: in, stdout: out}, c: cli.NewContext(cli.NewApp(), flag.NewFlagSet("", flag.ContinueOnError), nil), cfg: new(config.Config),
		in: newLineReader(in), person: person, now: func() time.Time {
			if asks = !asks; asks {
				at, pauses = at.Add(pauses[0]), pauses[1:]
			}
			return at
		}}, out
}

// Whoever carries a token may add lines to it. None of them confirms the code at a terminal, where a person reads it first.
func TestAnswerThatWasPastedWithATokenConfirmsNothing(t *testing.T) {
	const soon = reaction - time.Millisecond
	for _, c := range []struct {
		name, in string
		person   bool
		pauses   []time.Duration
		want     bool
		err      error
	}{
		{"a person who has looked", "y\n", true, []time.Duration{reaction}, true, nil},
		{"a person who types no", "n\n", true, []time.Duration{soon}, false, nil},
		{"pasted, then a no", "y\nno\n", true, []time.Duration{0, reaction}, false, nil},
		{"pasted, and nothing more", "y\nYES\n", true, []time.Duration{0, soon, 0}, false, invite.ErrDeclined},
		{"an empty line of the paste, then a yes", "\nyes\n", true, []time.Duration{0, reaction}, true, nil},
		{"a script", "y\n", false, []time.Duration{0}, true, nil},
	} {
		j, out := newAnswering(strings.NewReader(c.in), c.person, c.pauses...)
		got, err := j.ask(t.Context(), invite.Partner{Host: invite.Host{Name: "beta"}}, "123 456")
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v\n%s", c.name, got, err, out)
		}
	}
}

// terminal is a pseudo terminal: what is written to the first file is typed, and the other one is what a program reads.
func terminal(t *testing.T) (typed, read *os.File) {
	t.Helper()
	typed, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals:", err)
	}
	t.Cleanup(func() { typed.Close() })
	err = unix.IoctlSetPointerInt(int(typed.Fd()), unix.TIOCSPTLCK, 0)
	n, nerr := unix.IoctlGetInt(int(typed.Fd()), unix.TIOCGPTN)
	if err = errors.Join(err, nerr); err != nil {
		t.Fatal(err)
	}
	if read, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close() })
	return typed, read
}

// What is behind a token in the terminal when the code is shown is thrown away, however slowly it is read.
func TestRestOfAPasteIsThrownAway(t *testing.T) {
	typed, read := terminal(t)
	if _, err := io.WriteString(typed, "token\ny\ny\n"); err != nil {
		t.Fatal(err)
	}
	j, _ := newAnswering(read, true, reaction)
	if line, err := j.readLine(t.Context()); err != nil || line != "token\n" {
		t.Fatalf("%q, %v", line, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	answers := make(chan string, 1)
	go func() {
		line, _ := j.answer(ctx)
		answers <- line
	}()
	for waiting := true; waiting; { // until it reads
		// An answer that is typed once the question stands is one.
		if _, err := io.WriteString(typed, "n\n"); err != nil {
			t.Fatal(err)
		}
		select {
		case line := <-answers:
			if isYes(line) {
				t.Errorf("the answer was %q", line)
			}
			waiting = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
}

// Of the peers that this host has, only one that is declared by the other host's address is that host.
func TestPeerThatIsThereAlready(t *testing.T) {
	main := filepath.Join(t.TempDir(), "ironwarp.yaml")
	write := func(file, text string) {
		t.Helper()
		path := filepath.Join(filepath.Dir(main), file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("ironwarp.yaml", "state_dir: state\n")
	write("peers.d/half.yaml", "name: half\naddress: 198.51.100.2\npsk_file: /x\n")
	write("peers.d/named.yaml", "name: named\naddress: named.example\npsk_file: /x\n")
	write("state/names.json", `{"named.example": "198.51.100.3"}`)
	cfg, err := config.Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	j := &joint{main: main, cfg: cfg}
	for address, says := range map[string]string{"198.51.100.2": "ironwarp peer rm half", "198.51.100.3": "", "198.51.100.4": ""} {
		a := netip.MustParseAddr(address)
		err := j.check(invite.Partner{Host: invite.Host{Name: "beta", Port: cfg.ListenPort, UDPPort: cfg.ListenUDPPort}, Address: a, LocalAddress: netip.MustParseAddr("198.51.100.1")})
		if (err != nil) != (says != "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if p, _ := cfg.Peer("named"); p.Address.String() != "198.51.100.3" {
		t.Errorf("the named peer is at %s", p.Address)
	}
}
