package charontest

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
)

// Tree is a VICI message: keys in order, with strings, lists and trees.
type Tree []Pair

// Pair is a key and its value: a string, a []string or a Tree.
type Pair [2]any

// Key is the pair's key.
func (p Pair) Key() string { return p[0].(string) }

// Get returns the value of a key, nil if there is none.
func (t Tree) Get(key string) any {
	for _, p := range t {
		if p.Key() == key {
			return p[1]
		}
	}
	return nil
}

// Str returns the string of a key, "" if there is none.
func (t Tree) Str(key string) string { s, _ := t.Get(key).(string); return s }

// Encode appends the message to b.
func (t Tree) Encode(b []byte) []byte {
	short := func(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }
	long := func(b []byte, s string) []byte { return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...) }
	for _, p := range t {
		switch v := p[1].(type) {
		case Tree:
			b = v.Encode(short(append(b, 1), p.Key()))
			b = append(b, 2)
		case string:
			b = long(short(append(b, 3), p.Key()), v)
		case []string:
			b = short(append(b, 4), p.Key())
			for _, s := range v {
				b = long(append(b, 5), s)
			}
			b = append(b, 6)
		}
	}
	return b
}

func decode(b []byte) (t Tree, rest []byte) {
	short := func() string { n := int(b[0]); s := string(b[1 : 1+n]); b = b[1+n:]; return s }
	long := func() string { n := int(binary.BigEndian.Uint16(b)); s := string(b[2 : 2+n]); b = b[2+n:]; return s }
	for len(b) > 0 {
		kind := b[0]
		b = b[1:]
		switch kind {
		case 1:
			key := short()
			var inner Tree
			inner, b = decode(b)
			t = append(t, Pair{key, inner})
		case 2:
			return t, b
		case 3:
			key := short()
			t = append(t, Pair{key, long()})
		case 4:
			key := short()
			var items []string
			for b[0] == 5 {
				b = b[1:]
				items = append(items, long())
			}
			b = b[1:]
			t = append(t, Pair{key, items})
		}
	}
	return t, nil
}

// Charon speaks the VICI protocol on a Unix socket, as a strongSwan that does what it
// is asked. Set guards the exported fields once it runs.
type Charon struct {
	Socket  string
	Version string
	Plugins []string
	SAs     []Tree          // each a list-sa event
	Hang    map[string]bool // commands without an answer
	// Answer may replace the answer to a command; log are control-log lines.
	Answer func(cmd string, req Tree) (log []string, resp Tree)
	// Early is an event that is sent before every confirmation of a registration.
	Early string

	ln net.Listener
	wg sync.WaitGroup

	mu       sync.Mutex // guards the fields below it; taken before a client's
	conns    map[*client]bool
	commands []string
	loaded   map[string]map[string]bool // what it was given: conns, shared, keys, authorities
}

type client struct {
	net.Conn
	mu     sync.Mutex // guards the fields below it
	events map[string]bool
}

// New makes a charon for a socket. Start starts it.
func New(socket string) *Charon {
	return &Charon{Socket: socket, Version: "5.9.8",
		Plugins: []string{"charon", "openssl", "kernel-libipsec", "kernel-netlink", "socket-default", "vici"}, Hang: map[string]bool{}}
}

// Start starts it, anew after Stop. It fails where nobody can listen at the socket.
func (f *Charon) Start() error {
	_ = os.Remove(f.Socket)
	ln, err := net.Listen("unix", f.Socket)
	if err != nil {
		return err
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false) // as a crash leaves it
	f.mu.Lock()
	f.ln, f.conns, f.commands, f.loaded = ln, map[*client]bool{}, nil, map[string]map[string]bool{}
	f.mu.Unlock()
	f.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			fc := &client{Conn: c, events: map[string]bool{}}
			f.mu.Lock()
			f.conns[fc] = true
			f.mu.Unlock()
			f.wg.Go(func() { f.serve(fc) })
		}
	})
	return nil
}

// Stop ends it as a crash does: the socket's file stays.
func (f *Charon) Stop() {
	f.ln.Close()
	f.mu.Lock()
	for c := range f.conns {
		c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

func (c *client) send(kind byte, name string, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.Write(Packet(kind, name, body))
}

func (f *Charon) serve(c *client) {
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
			early := f.Early
			f.mu.Unlock()
			c.mu.Lock()
			c.events[name] = true
			had := c.events[early]
			c.mu.Unlock()
			if had {
				c.send(7, early, Tree{{"ev", Tree{}}}.Encode(nil))
			}
			c.send(5, "", nil)
		case 4:
			c.mu.Lock()
			delete(c.events, name)
			c.mu.Unlock()
			c.send(5, "", nil)
		case 0:
			req, _ := decode(body)
			f.command(c, name, req)
		}
	}
}

func (f *Charon) command(c *client, name string, req Tree) {
	f.mu.Lock()
	what := name
	for _, key := range []string{"child", "id", "name"} {
		if v := req.Str(key); v != "" {
			what += " " + v
			break
		}
	}
	if name == "load-conn" {
		what += " " + req[0].Key()
	}
	f.commands = append(f.commands, what)
	hang, answer := f.Hang[name], f.Answer
	var sas [][]byte // encoded while nobody changes them
	for _, sa := range f.SAs {
		if want := req.Str("ike"); want == "" || sa[0].Key() == want {
			sas = append(sas, sa.Encode(nil))
		}
	}
	version, plugins := f.Version, f.Plugins
	f.mu.Unlock()
	if hang {
		return
	}
	resp := Tree{{"success", "yes"}}
	if answer != nil {
		log, r := answer(name, req)
		for _, line := range log {
			c.send(7, "control-log", Tree{{"group", "IKE"}, {"level", "1"}, {"msg", line}}.Encode(nil))
		}
		if r != nil {
			c.send(1, "", r.Encode(nil))
			return
		}
	}
	f.mu.Lock()
	kind := name[strings.LastIndexByte(name, '-')+1:]
	switch {
	case name == "load-conn", name == "load-authority":
		f.keepLocked(kind, req[0].Key())
	case name == "load-shared":
		f.keepLocked(kind, req.Str("id"))
	case strings.HasPrefix(name, "unload-"):
		delete(f.loaded[kind], req.Str("name")+req.Str("id"))
	case name == "get-conns", name == "get-shared", name == "get-keys", name == "get-authorities":
		key := map[string]string{"conns": "conns", "authorities": "authorities"}[kind]
		of := map[string]string{"conns": "conn", "authorities": "authority", "keys": "key"}
		resp = Tree{{cmp.Or(key, "keys"), slices.Sorted(maps.Keys(f.loaded[cmp.Or(of[kind], kind)]))}}
	}
	f.mu.Unlock()
	switch name {
	case "version":
		resp = Tree{{"daemon", "charon"}, {"version", version}}
	case "stats":
		resp = Tree{{"plugins", plugins}}
	case "list-sas":
		for _, sa := range sas {
			c.send(7, "list-sa", sa)
		}
	}
	c.send(1, "", resp.Encode(nil))
}

// keepLocked notes what was loaded.
func (f *Charon) keepLocked(kind, name string) {
	if f.loaded[kind] == nil {
		f.loaded[kind] = map[string]bool{}
	}
	f.loaded[kind][name] = true
}

// Raise sends an event to everyone who registered for it.
func (f *Charon) Raise(name string, body Tree) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		c.mu.Lock()
		on := c.events[name]
		c.mu.Unlock()
		if on {
			c.send(7, name, body.Encode(nil))
		}
	}
}

// Set changes what it is or has, as change does.
func (f *Charon) Set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// Count returns how often a command came since the start.
func (f *Charon) Count(command string) int {
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

// SA is an IKE SA with installed children.
type SA struct {
	Name              string // of the connection
	Local, Remote     netip.Addr
	LocalID, RemoteID string
	Children          []Child
}

// Child is a child SA.
type Child struct {
	Name, LocalTS, RemoteTS string
	Label                   string // as it is meant
}

// List is its list-sa event, with the numbers of the IKE SA and of its first child.
func (s SA) List(ike, child int) Tree {
	kids := Tree{}
	for i, c := range s.Children {
		id := fmt.Sprint(child + i)
		kid := Tree{
			{"name", c.Name}, {"uniqueid", id}, {"reqid", "1"}, {"state", "INSTALLED"}, {"mode", "TUNNEL"}, {"protocol", "ESP"},
			{"encap", "yes"}, {"spi-in", "a8d5a68a"}, {"spi-out", "3274dba2"}, {"encr-alg", "AES_GCM_16"}, {"encr-keysize", "128"},
			{"bytes-in", "10"}, {"packets-in", "1"}, {"bytes-out", "20"}, {"packets-out", "2"},
			{"rekey-time", "3300"}, {"life-time", "3960"}, {"install-time", "12"},
			{"local-ts", []string{c.LocalTS}}, {"remote-ts", []string{c.RemoteTS}}}
		if c.Label != "" {
			kid = append(kid, Pair{"label", hex.EncodeToString(append([]byte(c.Label), 0))})
		}
		kids = append(kids, Pair{c.Name + "-" + id, kid})
	}
	return Tree{{s.Name, Tree{
		{"uniqueid", fmt.Sprint(ike)}, {"version", "2"}, {"state", "ESTABLISHED"},
		{"local-host", s.Local.String()}, {"local-port", "4500"}, {"local-id", s.LocalID},
		{"remote-host", s.Remote.String()}, {"remote-port", "4500"}, {"remote-id", s.RemoteID},
		{"initiator", "yes"}, {"initiator-spi", "1122334455667788"}, {"responder-spi", "8877665544332211"},
		{"encr-alg", "AES_GCM_16"}, {"encr-keysize", "128"}, {"prf-alg", "PRF_HMAC_SHA2_256"}, {"dh-group", "ECP_256"},
		{"established", "60"}, {"child-sas", kids}}}}
}
