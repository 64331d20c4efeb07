package attack

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
)

// exportRequest is a request that would offer a file of this host to a hostile peer.
func exportRequest(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "loot")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"name": "loot", "path": %q, "read_only": true, "allow": ["mallory"]}`, file)
}

// The host is set up wrongly, so that systemd hands the daemon a control socket that the
// network can reach. A peer asks there for what only the administrator may have: the
// daemon does not take the socket at all (R33, draft -07 of RFC 5042, section 5.4.7).
func TestManagementRequestsOfAPeer(t *testing.T) {
	const up, refused = "DAEMON IS UP", "DAEMON REFUSES: "
	t.Run("by a control socket of TCP", func(t *testing.T) {
		switchOff(t, checks.Management)
		if conf := os.Getenv("IRONWARP_STATION"); os.Getenv(child) == t.Name() {
			d, err := daemon.Start(t.Context(), daemon.Options{Config: conf, Named: true, Version: "test"})
			if err != nil {
				fmt.Printf("\n%s%s\n", refused, strings.ReplaceAll(err.Error(), "\n", " "))
				return
			}
			fmt.Printf("\n%s\n", up)
			_, _ = io.Copy(io.Discard, os.Stdin) // until the parent is done
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		s := newConfig(t, "")
		l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
		defer l.Close()
		f := must(l.(*net.TCPListener).File())(t)
		defer f.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
		defer cancel()
		self := must(os.Executable())(t)
		pattern := "^TestManagementRequestsOfAPeer$/^" + regexp.QuoteMeta("by_a_control_socket_of_TCP") + "$"
		cmd := exec.CommandContext(ctx, "sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, self, "-test.run="+pattern)
		cmd.Env = append(os.Environ(), child+"="+t.Name(), "IRONWARP_STATION="+filepath.Join(s.dir, "ironwarp.yaml"), "LISTEN_FDS=1")
		cmd.ExtraFiles = []*os.File{f} // which is 3
		stdin := must(cmd.StdinPipe())(t)
		out := must(cmd.StdoutPipe())(t)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		state := ""
		lines := bufio.NewScanner(out)
		for state == "" && lines.Scan() {
			if text := lines.Text(); text == up || strings.HasPrefix(text, refused) {
				state = text
			}
		}
		var stolen bool
		switch {
		case state == up:
			status, text := post(t, "http://"+l.Addr().String()+"/v1/exports", exportRequest(t))
			stolen = status/100 == 2
			t.Logf("a peer asks for an export: %d %s", status, text)
		case !strings.Contains(state, "is no Unix socket"):
			t.Errorf("the daemon says %q, %s", state, errs.String())
		}
		if err := stdin.Close(); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the daemon ended with %v: %s", err, errs.String())
		}
		switch {
		case stolen && !checks.Weakened:
			t.Error("the attack succeeds")
		case !stolen && checks.Weakened:
			t.Error("the attack fails without the check that it is about, too")
		}
	})
}

func post(t *testing.T, url, body string) (status int, text string) {
	t.Helper()
	req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body)))(t)
	c := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(data)
}

// Whatever a peer sends to the ports that the network reaches, the link's and that of the
// metrics, changes no file of the configuration or of the daemon's state, and not the
// configuration in use (R33).
func TestNothingOfTheWireIsConfiguration(t *testing.T) {
	switchOff(t, checks.None)
	metrics := iwarptest.FreePort(t)
	s := newStation(t, fmt.Sprintf("block: off\nmetrics: {listen: \"127.0.0.1:%d\"}\n", metrics))
	before, exports := s.digest(), len(must(s.api.Exports(t.Context()))(t))
	requests := []string{"GET /v1/info", "POST /v1/reload", "POST /v1/exports", "POST /v1/peers", "DELETE /v1/peers/friend", "POST /v1/attachments", "POST /v1/blocks", "DELETE /v1/streams/0"}
	body := exportRequest(t)
	for _, r := range requests {
		text := fmt.Sprintf("%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", r, len(body), body)
		// As the first bytes of a connection, as the private data of a request, and as
		// those of the services that there are.
		s.says(text)
		for _, magic := range []string{"", "IWpg\x01\x00\x00\x00", "IWpg", "RTRS"} {
			s.answers(mallorys, []byte(magic + text)[:min(512, len(magic)+len(text))])
		}
		method, path, _ := strings.Cut(r, " ")
		req := must(http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("http://127.0.0.1:%d%s", metrics, path), strings.NewReader(body)))(t)
		c := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
		resp := must(c.Do(req))(t)
		resp.Body.Close()
		if resp.StatusCode/100 == 2 {
			t.Errorf("the port of the metrics answers %s with %s", r, resp.Status)
		}
	}
	if after := s.digest(); after != before {
		t.Errorf("the files of the configuration and of the state were\n%s\nand are\n%s", before, after)
	}
	if n := len(must(s.api.Exports(t.Context()))(t)); n != exports {
		t.Errorf("there are %d exports, before there were %d", n, exports)
	}
	if n := len(must(s.api.Peers(t.Context()))(t)); n != 2 {
		t.Errorf("there are %d peers, 2 are configured", n)
	}
	if !s.answers(friends, nil) {
		t.Error("the daemon does not answer any more")
	}
}

// says sends bytes to the link's port and waits until the daemon ends the connection.
func (s *station) says(text string) {
	s.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: mallorys.AsSlice()}, Timeout: patience}
	c, err := d.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
	if err != nil {
		s.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, c)
}

// digest is what the files of a station are, sockets and locks aside.
func (s *station) digest() string {
	s.Helper()
	var b strings.Builder
	err := filepath.WalkDir(s.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintf(&b, "%s %x\n", strings.TrimPrefix(path, s.dir), sha256.Sum256(data))
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
	return b.String()
}
