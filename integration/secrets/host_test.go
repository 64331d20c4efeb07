package secrets

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
)

// host is a node all output of which is kept.
type host struct {
	*node.Node
	t      *testing.T
	hay    *haystack
	binary string
}

const metricsPort = "9471"

func startHost(t *testing.T, h *lab.Host, binary string, hay *haystack) *host {
	t.Helper()
	n := node.New(h, binary)
	n.More = "log: {level: debug}\nmetrics: {listen: \"127.0.0.1:" + metricsPort + "\"}\n"
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &host{Node: n, t: t, hay: hay, binary: binary}
}

// run runs the command line, keeps its output, and reports whether it succeeded.
func (h *host) run(stdin io.Reader, args ...string) (string, bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 3*time.Minute)
	defer cancel()
	cmd := h.Command(ctx, h.binary, args...)
	if stdin != nil {
		cmd.Stdin = onRead{stdin, h.hay.processes}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.hay.processes()
	err := cmd.Wait()
	h.hay.add("output of commands", h.Name()+": ironwarp "+strings.Join(args[:min(2, len(args))], " "), out.Bytes())
	h.t.Logf("%s: ironwarp %s: %v\n%s", h.Name(), strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	return out.String(), err == nil
}

// must is run for commands that have to succeed.
func (h *host) must(args ...string) string {
	h.t.Helper()
	out, ok := h.run(nil, args...)
	if !ok {
		h.t.Fatalf("ironwarp %s failed", strings.Join(args, " "))
	}
	return out
}

// fails is run for commands that have to fail with an error message.
func (h *host) fails(want string, args ...string) {
	h.t.Helper()
	if out, ok := h.run(nil, args...); ok || !strings.Contains(out, want) {
		h.t.Errorf("ironwarp %s: want a failure that says %q", strings.Join(args, " "), want)
	}
}

// endpoints are those that the documentation of the control API lists.
func endpoints(t *testing.T) (list [][2]string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "doc", "github.com/ironwarp/ironwarp/daemon/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`^\s+(GET|POST|DELETE)\s+(/v1/\S+)\s+(?:(GET|POST|DELETE)\s)?`)
	for _, l := range strings.Split(string(out), "\n") {
		if m := line.FindStringSubmatch(l); m != nil {
			list = append(list, [2]string{m[1], m[2]})
			if m[3] != "" {
				list = append(list, [2]string{m[3], m[2]})
			}
		}
	}
	if len(list) < 20 {
		t.Fatalf("only %d endpoints in the documentation: %v", len(list), list)
	}
	return list
}

// ask calls every endpoint of the control API and the metrics, and keeps the answers.
// Calls that would remove something name something that does not exist.
func (h *host) ask(list [][2]string, peer string) {
	h.t.Helper()
	socket := filepath.Join(h.RunDir(), "ironwarp", "ironwarp.sock")
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer tr.CloseIdleConnections()
	for _, e := range list {
		method, path := e[0], e[1]
		name := peer
		if method == http.MethodDelete {
			name = "nobody"
		}
		path = pathOf(path, name)
		body := map[string]any{"peer": peer, "export": "docs", "name": peer, "address": "192.0.2.77", "path": "/none", "count": 1, "seconds_per_row": 0.01}
		for try := range 2 {
			// A body with unknown keys shows the call's refusal; one without them, its answer.
			h.call(tr, method, path, body)
			if try == 0 {
				body = known(path, body)
			}
		}
	}
	h.metrics()
}

func pathOf(path, peer string) string {
	return strings.NewReplacer("NAME", peer, "PEER", peer, "EXPORT", "none").Replace(path)
}

// known keeps only those keys of a body that a call takes.
func known(path string, body map[string]any) map[string]any {
	keys := map[string][]string{
		"/v1/peers": {"name", "address"}, "/v1/exports": {"name", "path"}, "/v1/attachments": {"peer", "export"},
		"/v1/ping": {"peer", "count"}, "/v1/bench": {"peer", "seconds_per_row"},
		"/v1/blocks": {}, // nobody: a blocked peer has nothing more to show
	}[path]
	if keys == nil {
		keys = []string{"peer"}
	}
	out := map[string]any{}
	for _, k := range keys {
		out[k] = body[k]
	}
	return out
}

// answerTime bounds a call, and streamTime one that never ends. A call that has to wait
// for the peer may get no answer while there is no SA.
const (
	answerTime = 3 * time.Second
	streamTime = 500 * time.Millisecond
)

func (h *host) call(tr *http.Transport, method, path string, body map[string]any) {
	limit := answerTime
	if path == "/v1/sas/watch" {
		limit = streamTime
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), limit)
	defer cancel()
	data, err := json.Marshal(body)
	if err != nil {
		h.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://ironwarp"+path, bytes.NewReader(data))
	if err != nil {
		h.t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return
	}
	if err != nil {
		h.t.Errorf("%s %s: %v", method, path, err)
		return
	}
	defer resp.Body.Close()
	// The stream of events ends with the context; what came until then counts.
	answer, _ := io.ReadAll(resp.Body)
	h.hay.add("answers of the control API", fmt.Sprintf("%s %s from %s", method, path, h.Name()), answer)
}

func (h *host) metrics() {
	h.t.Helper()
	out, err := h.Run(h.t.Context(), "curl", "-sS", "http://127.0.0.1:"+metricsPort+"/metrics")
	if err != nil {
		h.t.Fatal(err)
	}
	h.hay.add("metrics", h.Name(), []byte(out))
}

// watch keeps what `ironwarp sa watch` prints until the test ends.
func (h *host) watch(args ...string) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	args = append([]string{"sa", "watch"}, args...)
	cmd := h.Command(ctx, h.binary, args...)
	out := keep{h.hay, "events", h.Name() + ": ironwarp " + strings.Join(args, " ")}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		cancel()
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it is killed
	})
}

// keep is a writer into the haystack.
type keep struct {
	hay         *haystack
	kind, place string
}

func (k keep) Write(p []byte) (int, error) {
	k.hay.add(k.kind, k.place, p)
	return len(p), nil
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
