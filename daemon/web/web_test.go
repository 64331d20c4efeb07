package web

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/html"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/doctor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waiting for what takes milliseconds.
const patience = time.Minute

// source is a daemon of a test.
type source struct {
	mu     sync.Mutex // guards the fields below it
	status api.Status
	err    error
}

func (s *source) Status(context.Context) (api.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// As over the control socket, each answer is a value of its own.
	data, err := json.Marshal(s.status)
	if err != nil {
		return api.Status{}, err
	}
	var st api.Status
	return st, errors.Join(json.Unmarshal(data, &st), s.err)
}

func (s *source) set(st api.Status, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.err = st, err
}

func (s *source) WatchSAs(ctx context.Context, _ string, _ func(api.SAEvent)) error {
	<-ctx.Done()
	return ctx.Err()
}

// serve runs a server of a source until the test ends.
func serve(t *testing.T, src Source, adjust func(*Server)) (s *Server, at string) {
	t.Helper()
	s = New(Options{Source: src, Host: "alpha", Interval: 10 * time.Millisecond})
	if adjust != nil {
		adjust(s)
	}
	ln, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("the server does not end")
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return s, ln.Addr().String()
}

// ask makes a request, and returns the answer's status and body.
func ask(t *testing.T, method, url string, adjust func(*http.Request)) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if adjust != nil {
		adjust(req)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// Who asks for what, and in which way, decides whether there is an answer.
func TestPageAnswersItsOwnUserAlone(t *testing.T) {
	src := &source{status: api.Status{Exports: []api.Export{{ExportSpec: api.ExportSpec{Name: "jewels"}}}}}
	s, at := serve(t, src, nil)
	path := s.Path()
	with := func(key, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(key, value) }
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	for _, c := range []struct {
		name, method, path string
		adjust             func(*http.Request)
		want               int
	}{
		{"the page", "GET", path, nil, 200},
		{"its head", "HEAD", path, nil, 200},
		{"its style", "GET", path + "style.css", nil, 200},
		{"its script", "GET", path + "script.js", nil, 200},
		{"typed into a browser", "GET", path, with("Sec-Fetch-Site", "none"), 200},
		{"by its own script", "GET", path, with("Sec-Fetch-Site", "same-origin"), 200},
		{"its own origin", "GET", path, with("Origin", "http://"+at), 200},
		{"localhost", "GET", path, host("localhost:9745"), 200},
		{"a port that ssh forwards", "GET", path, host("127.0.0.1:8080"), 200},
		{"IPv6", "GET", path, host("[::1]:9745"), 200},
		{"another loopback address", "GET", path, host("127.9.9.9"), 200},

		{"no token", "GET", "/", nil, 404},
		{"no token, a file", "GET", "/style.css", nil, 404},
		{"a wrong token", "GET", "/" + strings.Repeat("A", len(path)-2) + "/", nil, 404},
		{"a part of the token", "GET", path[:len(path)-2] + "/", nil, 404},
		{"the token in other case", "GET", strings.ToUpper(path[:12]) + strings.ToLower(path[12:]), nil, 404},
		{"more than the token", "GET", path[:len(path)-1] + "A/", nil, 404},
		{"an empty token", "GET", "//", nil, 404},
		{"another file", "GET", path + "page.html", nil, 404},
		{"a way out", "GET", path + "../server.go", nil, 404},
		{"a change", "POST", path, nil, 405},
		{"a removal", "DELETE", path, nil, 405},
		{"options", "OPTIONS", path, nil, 405},
		{"a change without the token", "POST", "/", nil, 404},
		{"a name that somebody else decides about", "GET", path, host("evil.example:9745"), 421},
		{"such a name with ours in it", "GET", path, host("localhost.evil.example"), 421},
		{"an address of the network", "GET", path, host("192.0.2.1:9745"), 421},
		{"the unspecified address", "GET", path, host("0.0.0.0:9745"), 421},
		{"a link of another site", "GET", path, with("Sec-Fetch-Site", "cross-site"), 403},
		{"another port of this host", "GET", path, with("Sec-Fetch-Site", "same-site"), 403},
		{"a value that no browser has", "GET", path, with("Sec-Fetch-Site", "friend"), 403},
		{"another origin", "GET", path, with("Origin", "http://evil.example"), 403},
		{"another port as origin", "GET", path, with("Origin", "http://127.0.0.1:1"), 403},
		{"no origin to name", "GET", path, with("Origin", "null"), 403},
		{"the origin of TLS", "GET", path, with("Origin", "https://"+at), 403},
		{"a body", "GET", path, func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader("x")), 1 }, 400},
	} {
		resp, body := ask(t, c.method, "http://"+at+c.path, c.adjust)
		if resp.StatusCode != c.want {
			t.Errorf("%s: %s, want %d: %.200s", c.name, resp.Status, c.want, body)
		}
		if c.want != 200 && (strings.Contains(body, "jewels") || strings.Contains(body, strings.Trim(path, "/"))) {
			t.Errorf("%s: it says what it should not: %s", c.name, body)
		}
		if len(resp.Cookies()) > 0 || resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: header %v", c.name, resp.Header)
		}
		for key, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "X-Frame-Options": "DENY", "Cross-Origin-Resource-Policy": "same-origin"} {
			if got := resp.Header.Get(key); got != want {
				t.Errorf("%s: %s is %q, want %q", c.name, key, got, want)
			}
		}
		csp := resp.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none'; ") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") || strings.Contains(csp, "http") {
			t.Errorf("%s: its policy is %q", c.name, csp)
		}
	}
}

// Two servers have tokens of their own, of which none is short.
func TestTokensAreRandom(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		token := newToken()
		if len(token) < 22 || seen[token] || strings.Trim(token, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			t.Fatalf("the token %q", token)
		}
		seen[token] = true
	}
}

// hostile are names as a peer would like them.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `</table></section><h1>owned</h1>`, `javascript:alert(1)`,
	"a\r\n\r\ndata: {\"ID\":\"peers\",\"HTML\":\"owned\"}\r\n\r\n", "\x1b[2J\x1b[31mred", "txt.\u202egpj", "a\u2028b", "{{.Token}}", "\xff\xfe<b>", strings.Repeat("x", 1<<16), "<!--", "]]>", "&lt;script&gt;",
}

// fill sets every string below v to s, gives every list one element and every pointer a value.
func fill(v reflect.Value, s string) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), s)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1e9, 0)))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), s)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), s)
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(42)
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(42)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(42)
	}
}

// shown is the page of a record all of whose texts are s, with its doctor and events.
func shown(t *testing.T, s string) string {
	t.Helper()
	var st api.Status
	fill(reflect.ValueOf(&st).Elem(), s)
	var findings []doctor.Finding
	fill(reflect.ValueOf(&findings).Elem(), s)
	var r record
	at := time.Unix(1e9, 0)
	r.look(at, api.Status{}, nil)
	r.look(at, st, nil)
	r.look(at, st, nil)
	r.look(at, api.Status{}, &api.Error{Message: s, Fix: s})
	r.examine(at, findings)
	r.note(saEvent(api.SAEvent{Time: at, Kind: s, Peer: s, Child: s, Reason: s, Detail: s}))
	srv := New(Options{Host: s})
	srv.update(func(x *record) { *x = r })
	parts, _ := srv.current()
	for _, part := range parts {
		if part.HTML == "" {
			t.Errorf("section %s is empty", part.ID)
		}
	}
	w := httptest.NewRecorder()
	srv.page(w, nil)
	return w.Body.String()
}

// structure is what a page is made of: its elements and their attributes with values, without text, in no order: names sort
// some tables.
func structure(t *testing.T, page string) (out []string) {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	for n := range doc.Descendants() {
		switch n.Type {
		case html.ElementNode:
			text := n.Data
			for _, a := range n.Attr {
				text += " " + a.Key + "=" + a.Val
			}
			out = append(out, text)
		case html.CommentNode:
			out = append(out, "comment")
		}
	}
	slices.Sort(out)
	return out
}

// Whatever a peer calls itself, its exports and its errors: the page is made of the same elements and attributes.
func TestHostileNamesAreText(t *testing.T) {
	want := structure(t, shown(t, "plain"))
	if len(want) < 200 {
		t.Fatalf("the page has %d elements only", len(want))
	}
	for _, name := range hostile {
		page := shown(t, name)
		if got := structure(t, page); !slices.Equal(got, want) {
			for i := range got {
				if i >= len(want) || got[i] != want[i] {
					t.Errorf("%.60q: element %d is %q, want %q", name, i, got[i], want[min(i, len(want)-1)])
					break
				}
			}
		}
		if strings.ContainsAny(page, "\x1b\u202e\u2028\r") {
			t.Errorf("%.60q is on the page as it is", name)
		}
		if len(page) > 1<<18 {
			t.Errorf("%.60q makes a page of %d bytes", name, len(page))
		}
	}
}

// FuzzLine: any text becomes one line that can be shown, of a bounded length.
func FuzzLine(f *testing.F) {
	for _, s := range hostile {
		f.Add(s[:min(len(s), 1000)])
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := line(s)
		if len(got) > 4*maxText || strings.ContainsAny(got, "\r\n\x00\x1b") {
			t.Errorf("%q becomes %q", s, got)
		}
	})
}

// readEvents reads server-sent events of a page until ok says that it is enough.
func readEvents(t *testing.T, url string, ok func(id, text string) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") {
		t.Fatalf("%s, %s", resp.Status, got)
	}
	in := bufio.NewScanner(resp.Body)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		switch data, is := strings.CutPrefix(in.Text(), "data: "); {
		case in.Text() == "":
		case !is:
			t.Fatalf("the line %q", in.Text())
		default:
			var part struct{ ID, HTML string }
			if err := json.Unmarshal([]byte(data), &part); err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(sections, part.ID) {
				t.Fatalf("section %q", part.ID)
			}
			if ok(part.ID, part.HTML) {
				return
			}
		}
	}
	t.Fatalf("the events end: %v", in.Err())
}

// forbidden is a daemon that lets its caller ask for its status alone.
type forbidden struct {
	source
	watched atomic.Int32
}

func (f *forbidden) WatchSAs(context.Context, string, func(api.SAEvent)) error {
	f.watched.Add(1)
	return &api.Error{Code: api.CodeForbidden, Message: "ULP x may not ask for that"}
}

// A user who may see a part of the host sees that, and the daemon is asked for the rest once.
func TestUserWhoMaySeeAPart(t *testing.T) {
	src := &forbidden{}
	src.set(api.Status{Attachments: []api.Attachment{{ULP: "lab", Peer: "beta", Export: "disk", State: api.AttachReady}}}, nil)
	s, at := serve(t, src, func(s *Server) { s.watchAgain = time.Microsecond })
	readEvents(t, "http://"+at+s.Path()+"events", func(id, text string) bool { return id == "disks" && strings.Contains(text, "beta/disk of lab") })
	looks := 0
	readEvents(t, "http://"+at+s.Path()+"events", func(string, string) bool {
		_, changed := s.current()
		<-changed
		looks++
		return looks > 20
	})
	if n := src.watched.Load(); n != 1 {
		t.Errorf("the events of SAs were asked for %d times", n)
	}
}

// An open page gets what changes, and only that; hostile names do not end an event.
func TestOpenPageGetsWhatChanges(t *testing.T) {
	src := &source{status: api.Status{Peers: []api.Peer{{PeerSpec: api.PeerSpec{Name: "beta"}, State: api.PeerUp}}}}
	s, at := serve(t, src, nil)
	step, peers := 0, 0
	readEvents(t, "http://"+at+s.Path()+"events", func(id, text string) bool {
		if id == "peers" && text != "" {
			peers++
		}
		switch {
		case step == 0 && id == "peers" && strings.Contains(text, "beta"):
			src.set(api.Status{Peers: []api.Peer{{PeerSpec: api.PeerSpec{Name: hostile[5]}, State: api.PeerPaused}}}, nil)
			step++
		case step == 1 && id == "peers" && strings.Contains(text, "data: "):
			src.set(api.Status{}, &api.Error{Code: api.CodeUnavailable, Message: "no daemon at x"})
			step++
		case step == 2 && id == "state" && strings.Contains(text, "no daemon at x"):
			src.set(api.Status{}, nil)
			step++
		case step == 3 && id == "events" && strings.Contains(text, "the daemon answers"):
			return true
		}
		return false
	})
	if peers > 3 {
		t.Errorf("the peers, which changed twice, were sent %d times", peers)
	}
}

// So many pages may be open, and the next one is told so; one that is closed makes room.
func TestOpenPagesAreBounded(t *testing.T) {
	s, at := serve(t, &source{}, nil)
	url := "http://" + at + s.Path() + "events"
	var open []*http.Response
	defer func() {
		for _, r := range open {
			r.Body.Close()
		}
	}()
	for range maxStreams {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, resp)
	}
	if resp, _ := ask(t, http.MethodGet, url, nil); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more page: %s", resp.Status)
	}
	if resp, _ := ask(t, http.MethodGet, "http://"+at+s.Path(), nil); resp.StatusCode != http.StatusOK {
		t.Errorf("the page itself: %s", resp.Status)
	}
	open[0].Body.Close()
	until(t, "there is room again", func() bool {
		resp, err := http.Get(url)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("never happened: %s", what)
		case <-tick.C:
		}
	}
}

// A client that reads nothing, or says nothing, is cut off.
func TestSlowClientsAreDropped(t *testing.T) {
	dial := func(at string) *net.TCPConn {
		t.Helper()
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.(*net.TCPConn)
	}
	_, at := serve(t, &source{}, func(s *Server) { s.headerTime = 100 * time.Millisecond })
	silent := dial(at)
	if err := silent.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(silent); err != nil {
		t.Errorf("a connection without a request: %q, %v; want it closed", b, err)
	}

	src := &source{}
	s, at := serve(t, src, func(s *Server) { s.writeTime = 100 * time.Millisecond })
	until(t, "its page is open", func() bool { // a busy machine may need more for the head than it has
		slow := dial(at)
		if err := slow.SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(slow, "GET "+s.Path()+"events HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			return false
		}
		head := make([]byte, len("HTTP/1.1 200"))
		_, err := io.ReadFull(slow, head)
		return err == nil && string(head) == "HTTP/1.1 200"
	})
	n := 0
	until(t, "what does not read has no page open any more", func() bool {
		n++
		st := api.Status{}
		for i := range maxRows {
			st.Exports = append(st.Exports, api.Export{ExportSpec: api.ExportSpec{Name: strings.Repeat("x", 500), Path: string(rune('a' + i%26))}, Opens: n})
		}
		src.set(st, nil)
		return len(s.streams) == 0
	})
}

// Whoever lacks the token may take all connections, and keep them: who has it comes in all the same, and its open page stays.
func TestConnectionsOfStrangersKeepNobodyOut(t *testing.T) {
	src := &source{}
	s, at := serve(t, src, nil)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	events, err := (&http.Client{Transport: transport}).Get("http://" + at + s.Path() + "events")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	for i := range 3 * maxConns {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			continue // says nothing
		}
		if _, err := io.WriteString(c, "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			continue // it has given way already
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound || resp.Close {
			t.Fatalf("a stranger: %s, closed: %v", resp.Status, resp.Close)
		}
	}
	client := &http.Client{Transport: transport, Timeout: 45 * time.Second} // less than an idle connection may stay
	page, err := client.Get("http://" + at + s.Path())
	if err != nil {
		t.Fatal(err)
	}
	page.Body.Close()
	if page.StatusCode != http.StatusOK {
		t.Errorf("the page: %s", page.Status)
	}
	src.set(api.Status{Exports: []api.Export{{ExportSpec: api.ExportSpec{Name: "made-later"}}}}, nil)
	lines := bufio.NewReader(events.Body)
	for line := ""; !strings.Contains(line, "made-later"); {
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatalf("the page that was open: %v", err)
		}
	}
}

// Who has the token may have as many connections as there are, and no more.
func TestConnectionsAreBounded(t *testing.T) {
	s := &conns{all: map[*conn]bool{}}
	for range maxConns {
		c := &conn{of: s}
		if out := s.admit(c); out != nil {
			t.Fatal("one went before there were too many")
		}
		know(withConn(t.Context(), c))
	}
	if c := (&conn{of: s}); s.admit(c) != c || len(s.all) != maxConns {
		t.Errorf("one more was admitted; there are %d", len(s.all))
	}
}

// The page is on loopback, or on a socket that only its owner reaches.
func TestListen(t *testing.T) {
	for _, at := range []string{"0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[fe80::1]:0", ":9745", "localhost:0", "9745", "", "unix:"} {
		ln, err := Listen(t.Context(), at)
		if err == nil {
			ln.Close()
			t.Errorf("%q is taken", at)
		}
		var e *api.Error
		if !errors.As(err, &e) || e.Fix == "" {
			t.Errorf("%q: %v, without what to do", at, err)
		}
	}
	one, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	if _, err := Listen(t.Context(), one.Addr().String()); !errors.Is(err, &api.Error{Code: api.CodeInUse}) {
		t.Errorf("a port that is taken: %v", err)
	}
	dir, err := os.MkdirTemp("", "iw")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "page.sock")
	for range 2 { // the second one finds the file of the first, which has died
		ln, err := Listen(t.Context(), "unix:"+path)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("the socket: %v, %v; want mode 0600", st.Mode(), err)
		}
		if _, err := Listen(t.Context(), "unix:"+path); !errors.Is(err, &api.Error{Code: api.CodeInUse}) {
			t.Errorf("a socket that is taken: %v", err)
		}
		ln.(*net.UnixListener).SetUnlinkOnClose(false)
		ln.Close()
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), "unix:"+filepath.Join(dir, "file")); err == nil {
		t.Error("a file is taken for a socket")
	}
}
