package ipsec

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// tree is a VICI message: keys in order, with strings, lists and trees.
type tree []pair

type pair struct {
	key   string
	value any // string, []string or tree
}

func (t tree) get(key string) any {
	for _, p := range t {
		if p.key == key {
			return p.value
		}
	}
	return nil
}

func (t tree) str(key string) string { s, _ := t.get(key).(string); return s }

func (t tree) encode(b []byte) []byte {
	short := func(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }
	long := func(b []byte, s string) []byte { return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...) }
	for _, p := range t {
		switch v := p.value.(type) {
		case tree:
			b = v.encode(short(append(b, 1), p.key))
			b = append(b, 2)
		case string:
			b = long(short(append(b, 3), p.key), v)
		case []string:
			b = short(append(b, 4), p.key)
			for _, s := range v {
				b = long(append(b, 5), s)
			}
			b = append(b, 6)
		}
	}
	return b
}

func decodeTree(b []byte) (t tree, rest []byte) {
	short := func() string { n := int(b[0]); s := string(b[1 : 1+n]); b = b[1+n:]; return s }
	long := func() string { n := int(binary.BigEndian.Uint16(b)); s := string(b[2 : 2+n]); b = b[2+n:]; return s }
	for len(b) > 0 {
		kind := b[0]
		b = b[1:]
		switch kind {
		case 1:
			key := short()
			var inner tree
			inner, b = decodeTree(b)
			t = append(t, pair{key, inner})
		case 2:
			return t, b
		case 3:
			key := short()
			t = append(t, pair{key, long()})
		case 4:
			key := short()
			var items []string
			for b[0] == 5 {
				b = b[1:]
				items = append(items, long())
			}
			b = b[1:]
			t = append(t, pair{key, items})
		}
	}
	return t, nil
}

// fakeCharon speaks the VICI protocol on a Unix socket.
type fakeCharon struct {
	t      *testing.T
	socket string
	ln     net.Listener
	wg     sync.WaitGroup

	mu       sync.Mutex
	conns    map[*fakeConn]bool
	commands []string
	version  string
	plugins  []string
	sas      []tree                     // each a list-sa event
	hang     map[string]bool            // commands without an answer
	loaded   map[string]map[string]bool // what it was given: conns, shared, keys, authorities
	// answer may replace the answer to a command; log are control-log lines.
	answer func(cmd string, req tree) (log []string, resp tree)
	// early is an event that is sent before every confirmation of a registration.
	early string
}

type fakeConn struct {
	net.Conn
	mu     sync.Mutex
	events map[string]bool
}

func newFakeCharon(t *testing.T) *fakeCharon {
	t.Helper()
	dir, err := os.MkdirTemp("", "vici")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeCharon{t: t, socket: filepath.Join(dir, "vici"), version: "5.9.8",
		plugins: []string{"charon", "openssl", "kernel-libipsec", "kernel-netlink", "socket-default", "vici"}, hang: map[string]bool{}}
	f.start()
	t.Cleanup(func() { f.stop(); os.RemoveAll(dir) })
	return f
}

func (f *fakeCharon) start() {
	f.t.Helper()
	_ = os.Remove(f.socket)
	ln, err := net.Listen("unix", f.socket)
	if err != nil {
		f.t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false) // as a crash leaves it
	f.mu.Lock()
	f.ln, f.conns, f.commands, f.loaded = ln, map[*fakeConn]bool{}, nil, map[string]map[string]bool{}
	f.mu.Unlock()
	f.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			fc := &fakeConn{Conn: c, events: map[string]bool{}}
			f.mu.Lock()
			f.conns[fc] = true
			f.mu.Unlock()
			f.wg.Go(func() { f.serve(fc) })
		}
	})
}

// stop ends it as a crash does: the socket's file stays.
func (f *fakeCharon) stop() {
	f.ln.Close()
	f.mu.Lock()
	for c := range f.conns {
		c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

func (c *fakeConn) send(kind byte, name string, body []byte) {
	b := []byte{kind}
	if name != "" {
		b = append(append(b, byte(len(name))), name...)
	}
	b = append(b, body...)
	frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.Write(frame)
}

func (f *fakeCharon) serve(c *fakeConn) {
	defer func() {
		c.Close()
		f.mu.Lock()
		delete(f.conns, c)
		f.mu.Unlock()
	}()
	for {
		var head [4]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint32(head[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		name := string(b[2 : 2+int(b[1])])
		body := b[2+int(b[1]):]
		switch b[0] {
		case 3: // register
			f.mu.Lock()
			early := f.early
			f.mu.Unlock()
			c.mu.Lock()
			c.events[name] = true
			had := c.events[early]
			c.mu.Unlock()
			if had {
				c.send(7, early, tree{{"ev", tree{}}}.encode(nil))
			}
			c.send(5, "", nil)
		case 4:
			c.mu.Lock()
			delete(c.events, name)
			c.mu.Unlock()
			c.send(5, "", nil)
		case 0:
			req, _ := decodeTree(body)
			f.command(c, name, req)
		}
	}
}

func (f *fakeCharon) command(c *fakeConn, name string, req tree) {
	f.mu.Lock()
	what := name
	for _, key := range []string{"child", "id", "name"} {
		if v := req.str(key); v != "" {
			what += " " + v
			break
		}
	}
	if name == "load-conn" {
		what += " " + req[0].key
	}
	f.commands = append(f.commands, what)
	hang, answer := f.hang[name], f.answer
	var sas [][]byte // encoded while nobody changes them
	for _, sa := range f.sas {
		if want := req.str("ike"); want == "" || sa[0].key == want {
			sas = append(sas, sa.encode(nil))
		}
	}
	version, plugins := f.version, f.plugins
	f.mu.Unlock()
	if hang {
		return
	}
	resp := tree{{"success", "yes"}}
	if answer != nil {
		log, r := answer(name, req)
		for _, line := range log {
			c.send(7, "control-log", tree{{"group", "IKE"}, {"level", "1"}, {"msg", line}}.encode(nil))
		}
		if r != nil {
			c.send(1, "", r.encode(nil))
			return
		}
	}
	f.mu.Lock()
	kind := name[strings.LastIndexByte(name, '-')+1:]
	switch {
	case name == "load-conn", name == "load-authority":
		f.keep(kind, req[0].key)
	case name == "load-shared":
		f.keep(kind, req.str("id"))
	case strings.HasPrefix(name, "unload-"):
		delete(f.loaded[kind], req.str("name")+req.str("id"))
	case name == "get-conns", name == "get-shared", name == "get-keys", name == "get-authorities":
		key := map[string]string{"conns": "conns", "authorities": "authorities"}[kind]
		of := map[string]string{"conns": "conn", "authorities": "authority", "keys": "key"}
		resp = tree{{cmp.Or(key, "keys"), slices.Sorted(maps.Keys(f.loaded[cmp.Or(of[kind], kind)]))}}
	}
	f.mu.Unlock()
	switch name {
	case "version":
		resp = tree{{"daemon", "charon"}, {"version", version}}
	case "stats":
		resp = tree{{"plugins", plugins}}
	case "list-sas":
		for _, sa := range sas {
			c.send(7, "list-sa", sa)
		}
	}
	c.send(1, "", resp.encode(nil))
}

// keep notes what was loaded; f.mu is held.
func (f *fakeCharon) keep(kind, name string) {
	if f.loaded[kind] == nil {
		f.loaded[kind] = map[string]bool{}
	}
	f.loaded[kind][name] = true
}

// raise sends an event to everyone who registered for it.
func (f *fakeCharon) raise(name string, body tree) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		c.mu.Lock()
		on := c.events[name]
		c.mu.Unlock()
		if on {
			c.send(7, name, body.encode(nil))
		}
	}
}

func (f *fakeCharon) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// count tells how often a command came since the start.
func (f *fakeCharon) count(command string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.commands {
		if c == command {
			n++
		}
	}
	return n
}

// saOf is a list-sa event of a peer with installed children of these names.
func saOf(p pad.Peer, children ...string) tree {
	kids := tree{}
	for i, name := range children {
		local, remote := p.Local.String()+"/32[tcp]", fmt.Sprintf("%v/32[tcp/%d]", p.Remote, p.Port)
		for _, s := range p.ChildSAs() {
			if s.Name == name {
				local, remote = s.Local.String(), s.Remote.String()
			}
		}
		kids = append(kids, pair{fmt.Sprintf("%s-%d", name, i+1), tree{
			{"name", name}, {"uniqueid", fmt.Sprint(i + 1)}, {"reqid", "1"}, {"state", "INSTALLED"}, {"mode", "TUNNEL"}, {"protocol", "ESP"},
			{"encap", "yes"}, {"spi-in", "a8d5a68a"}, {"spi-out", "3274dba2"}, {"encr-alg", "AES_GCM_16"}, {"encr-keysize", "128"},
			{"bytes-in", "10"}, {"packets-in", "1"}, {"bytes-out", "20"}, {"packets-out", "2"},
			{"rekey-time", "3300"}, {"life-time", "3960"}, {"install-time", "12"},
			{"local-ts", []string{local}}, {"remote-ts", []string{remote}}}})
	}
	return tree{{p.Name, tree{
		{"uniqueid", "7"}, {"version", "2"}, {"state", "ESTABLISHED"},
		{"local-host", p.Local.String()}, {"local-port", "4500"}, {"local-id", p.LocalID},
		{"remote-host", p.Remote.String()}, {"remote-port", "4500"}, {"remote-id", p.RemoteID},
		{"initiator", "yes"}, {"initiator-spi", "1122334455667788"}, {"responder-spi", "8877665544332211"},
		{"encr-alg", "AES_GCM_16"}, {"encr-keysize", "128"}, {"prf-alg", "PRF_HMAC_SHA2_256"}, {"dh-group", "ECP_256"},
		{"established", "60"}, {"child-sas", kids}}}}
}
