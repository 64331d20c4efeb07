// Package browser drives a headless Chromium for tests, over the pipe of its DevTools protocol.
package browser

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Name is the program, and Debian's package of it.
const Name = "chromium"

// patience bounds one answer of the browser: a busy machine is no failure.
const patience = time.Minute

// Browser is a Chromium with one page.
type Browser struct {
	t       testing.TB
	in      io.WriteCloser
	session string

	mu      sync.Mutex // guards the fields below it
	last    int
	waiting map[int]chan answer
	ended   error
	log     []string // what pages have written to the console, and what was refused to them
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// Need skips a test where there is no Chromium.
func Need(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath(Name); err != nil {
		t.Skipf("no %s here: apt-get install %s", Name, Name)
	}
}

// Start starts a Chromium that ends with the test. command makes its command: that of a network namespace, for one. more are further
// flags.
func Start(t testing.TB, command func(ctx context.Context, name string, args ...string) *exec.Cmd, more ...string) *Browser {
	t.Helper()
	Need(t)
	ctx, cancel := context.WithCancel(context.Background())
	home := t.TempDir()
	cmd := command(ctx, Name, append(more, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars", "--user-data-dir="+filepath.Join(home, "profile"), "about:blank")...)
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "HOME="+home)
	toRead, toWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromRead, fromWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{toRead, fromWrite} // descriptors 3 and 4
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	toRead.Close()
	fromWrite.Close()
	b := &Browser{t: t, in: toWrite, waiting: map[int]chan answer{}}
	var reading sync.WaitGroup
	reading.Go(func() { b.read(fromRead) })
	t.Cleanup(func() {
		_, _ = b.ask("", "Browser.close", nil)
		toWrite.Close()
		stop := time.AfterFunc(10*time.Second, cancel)
		_ = cmd.Wait() // how it ends is its own business
		stop.Stop()
		cancel()
		fromRead.Close()
		reading.Wait()
	})
	var target struct{ TargetID string }
	b.must("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.must("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page.enable", "Runtime.enable", "Log.enable"} {
		b.must(b.session, domain, nil, nil)
	}
	return b
}

// read takes messages, which end with a zero byte, until the browser ends.
func (b *Browser) read(from io.Reader) {
	in := bufio.NewReaderSize(from, 1<<20)
	for {
		data, err := in.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			b.ended = fmt.Errorf("the browser has ended: %w", err)
			for id, to := range b.waiting {
				close(to)
				delete(b.waiting, id)
			}
			b.mu.Unlock()
			return
		}
		var m struct {
			ID     int
			Method string
			Params json.RawMessage
			answer
		}
		if json.Unmarshal(data[:len(data)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		if to, ok := b.waiting[m.ID]; ok {
			to <- m.answer
			delete(b.waiting, m.ID)
		}
		switch m.Method {
		case "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown":
			b.log = append(b.log, string(m.Params))
		}
		b.mu.Unlock()
	}
}

// expect makes the number of a question, and where its answer comes. It fails once the browser has ended.
func (b *Browser) expect() (id int, to chan answer, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended != nil {
		return 0, nil, b.ended
	}
	b.last++
	to = make(chan answer, 1)
	b.waiting[b.last] = to
	return b.last, to, nil
}

// ask calls a method of the protocol, in a page's session or "" for the browser's own. It fails if the browser refuses, has ended or is silent.
func (b *Browser) ask(session, method string, params any) (json.RawMessage, error) {
	id, to, err := b.expect()
	if err != nil {
		return nil, err
	}
	m := map[string]any{"id": id, "method": method}
	if params != nil {
		m["params"] = params
	}
	if session != "" {
		m["sessionId"] = session
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if _, err := b.in.Write(append(data, 0)); err != nil {
		return nil, err
	}
	select {
	case a, ok := <-to:
		switch {
		case !ok:
			return nil, errors.New("the browser has ended")
		case a.Error != nil:
			return nil, fmt.Errorf("%s: %s", method, a.Error.Message)
		}
		return a.Result, nil
	case <-time.After(patience):
		return nil, fmt.Errorf("%s: no answer in %s", method, patience)
	}
}

func (b *Browser) must(session, method string, params, out any) {
	b.t.Helper()
	result, err := b.ask(session, method, params)
	if err == nil && out != nil {
		err = json.Unmarshal(result, out)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// Open has the page show an address. It does not wait for it.
func (b *Browser) Open(url string) {
	b.t.Helper()
	b.must(b.session, "Page.navigate", map[string]any{"url": url}, nil)
}

// Evaluate evaluates an expression in the page, and reads its JSON value into out.
func (b *Browser) Evaluate(expression string, out any) {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	b.must(b.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &r)
	if e := r.ExceptionDetails; e != nil {
		b.t.Fatalf("%s: %s %s", expression, e.Text, e.Exception.Description)
	}
	if out == nil || len(r.Result.Value) == 0 {
		return
	}
	if err := json.Unmarshal(r.Result.Value, out); err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
}

// Until waits until an expression is true in the page.
func (b *Browser) Until(what, expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		var is bool
		b.Evaluate("(() => { try { return !!("+expression+") } catch { return false } })()", &is) // it may not be loaded yet
		if is {
			return
		}
		select {
		case <-ctx.Done():
			var text string
			b.Evaluate("document.body ? document.body.innerText : ''", &text)
			b.t.Fatalf("never happened: %s; the page has:\n%.3000s\nand its log:\n%s", what, text, b.Log())
		case <-tick.C:
		}
	}
}

// Look sets the width of the window in CSS pixels, and whether its user likes it dark.
func (b *Browser) Look(width int, dark bool) {
	b.t.Helper()
	b.must(b.session, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.must(b.session, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Scripts switches JavaScript of pages on or off, for those that are opened from now on.
func (b *Browser) Scripts(on bool) {
	b.t.Helper()
	b.must(b.session, "Emulation.setScriptExecutionDisabled", map[string]any{"value": !on}, nil)
}

// Screenshot returns the whole page as PNG.
func (b *Browser) Screenshot() []byte {
	b.t.Helper()
	var r struct{ Data string }
	b.must(b.session, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &r)
	data, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return data
}

// Log is what pages have written to the console, and what was refused to them, as JSON.
func (b *Browser) Log() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.log...)
}
