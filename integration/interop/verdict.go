package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Evidence is what is known of a case after its run.
type Evidence struct {
	ClientStatus, ServerStatus int // exit statuses, -1: none
	ClientOut, ServerOut       string
	ClientErr, ServerErr       string
	Startup                    Startup // on the wire
	Faults                     []Fault // of what was on the wire
}

func readEvidence(dir string, c Case) Evidence {
	read := func(suffix string) string {
		b, _ := os.ReadFile(filepath.Join(dir, c.Name()+"."+suffix))
		return string(b)
	}
	status := func(suffix string) int {
		n, err := strconv.Atoi(strings.TrimSpace(read(suffix)))
		if err != nil {
			return -1
		}
		return n
	}
	return Evidence{
		ClientStatus: status("client.status"), ServerStatus: status("server.status"),
		ClientOut: read("client.out"), ServerOut: read("server.out"),
		ClientErr: read("client.err"), ServerErr: read("server.err"),
	}
}

// Verdict is the result of a case.
type Verdict struct {
	Case
	Worked bool
	Why    string // it did not work
	Blame  Blame  // by what was on the wire
	Wire   string // what was wrong on the wire
	Tries  int    // how often the case was run
}

// Expected reports whether the case went as it should: one that the peer can't do has
// to fail, so that the table is updated when it can.
func (v Verdict) Expected() bool { return v.Worked == (v.Lacking == "") && v.Blame != Us }

// Result is the verdict in a few words.
func (v Verdict) Result() string {
	switch {
	case v.Worked && v.Lacking == "" && v.Quirk != "":
		return "ok; " + v.Quirk
	case v.Worked && v.Lacking == "":
		return "ok"
	case v.Worked:
		return "ok, unexpected"
	case v.Lacking != "":
		return "fails: " + v.Lacking
	}
	return "FAILED: " + v.Why
}

// judge requires that every ping came back complete: both ends have seen the same
// texts, the client has compared them, and our end has succeeded. rping's server takes
// the end of its client for an error, so siw's status means nothing. And the start-up
// on the wire has to be the one that the case is about.
func judge(c Case, e Evidence) Verdict {
	v := Verdict{Case: c, Tries: 1}
	v.Why = c.wrongStartup(e.Startup)
	if v.Why == "" {
		v.Why = c.failure(e)
	}
	v.Blame, v.Wire = judgeWire(e.Faults, v.Why == "")
	if v.Blame == Us || v.Wire != "" && v.Why != "" {
		v.Why = strings.TrimPrefix(v.Why+"; "+v.Wire, "; ")
	}
	v.Worked = v.Why == ""
	return v
}

// wrongStartup returns how the start-up differs from the case's.
func (c Case) wrongStartup(s Startup) string {
	revision := uint8(2)
	if c.MPA1 {
		revision = 1
	}
	switch {
	case s.Request == nil || s.Reply == nil:
		return "there was no MPA start-up"
	case s.Reply.Reject:
		return "the server refused the stream"
	case s.Request.Revision != revision || s.Reply.Revision != revision:
		return fmt.Sprintf("MPA request of revision %d, reply of revision %d", s.Request.Revision, s.Reply.Revision)
	case s.CRC() != c.WantCRC():
		return fmt.Sprintf("the request's CRC bit is %v, the reply's %v", s.Request.CRC, s.Reply.CRC)
	case c.P2P && (s.Request.Enhanced == nil || !s.Request.Enhanced.PeerToPeer):
		return "the request does not ask for the peer-to-peer model"
	case c.P2P && !s.Ready():
		return fmt.Sprintf("the first message is not the one agreed on: %x", s.First)
	}
	return ""
}

// failure returns what went wrong with the pings.
func (c Case) failure(e Evidence) string {
	sent, seen := texts(e.ClientOut, "ping data: "), texts(e.ServerOut, "server ping data: ")
	ours, name := e.ServerStatus, "our server"
	if c.Server == Siw {
		ours, name = e.ClientStatus, "our client"
	}
	switch {
	case e.ClientStatus != 0:
		return fmt.Sprintf("the client's exit status is %d: %s", e.ClientStatus, lastLine(e.ClientErr))
	case len(sent) != pings || len(seen) != pings:
		return fmt.Sprintf("the client saw %d of %d pings, the server %d", len(sent), pings, len(seen))
	case ours != 0:
		return fmt.Sprintf("%s's exit status is %d: %s", name, ours, lastLine(e.ServerErr))
	}
	for i := range pings {
		if sent[i] != seen[i] || len(sent[i]) != c.Size-1 {
			return fmt.Sprintf("ping %d: the client saw %d bytes and the server %d, or they differ", i, len(sent[i]), len(seen[i]))
		}
	}
	return ""
}

// texts are the lines that begin with prefix, without it.
func texts(out, prefix string) []string {
	var ts []string
	for line := range strings.Lines(out) {
		if t, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), prefix); ok {
			ts = append(ts, t)
		}
	}
	return ts
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
