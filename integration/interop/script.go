package main

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed guest.sh
var guestScript string

// firstPort is the port of the first case. Each case has its own, so that none gets
// what an earlier one has left.
const firstPort = 7200

// suitePort is the first port of the suite.
const suitePort = 7400

// script carries out a plan in the guest.
func (l *lab) script(p plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "capture_length=%d\n%s", captureLength, guestScript)
	for i, c := range p.cases {
		fmt.Fprintln(&b, command(l.binary, c, firstPort+i))
	}
	if p.suite != "" {
		fmt.Fprintf(&b, "suite %d %s suite -agent %s -port %d -results $out/suite.results -test.v -test.run %s\n",
			int(suiteTime.Seconds()), quote(l.self), quote(l.agent), suitePort, quote(p.suite))
	}
	b.WriteString("finish\n")
	return b.String()
}

// command is the guest's command for one case: siw is in namespace A, we are in B.
func command(binary string, c Case, port int) string {
	siwAddr, ourAddr := "10.9.0.1", "10.9.0.2"
	if c.IPv6 {
		siwAddr, ourAddr = "fd09::1", "fd09::2"
	}
	listen := siwAddr
	if c.Server == Ours {
		listen = ourAddr
	}
	ours := []string{quote(binary), "rping", "-v", "-d", "-p", fmt.Sprint(port), "-a", listen, "--plaintext", siwAddr}
	siw := []string{"rping", "-v", "-p", fmt.Sprint(port), "-a", listen, "-S", fmt.Sprint(c.Size)}
	if !c.OurCRC {
		ours = append(ours, "--no-crc")
	}
	client := &ours
	server := &siw
	if c.Server == Ours {
		client, server = &siw, &ours
	}
	*server = append(*server, "-s")
	*client = append(*client, "-c", "-V", "-C", fmt.Sprint(pings))
	p2p, revision := 0, 2
	if c.Server == Siw {
		ours = append(ours, "-S", fmt.Sprint(c.Size))
	}
	switch {
	case c.P2P && c.Server == Siw:
		ours = append(ours, "--peer-to-peer")
		p2p = 1
	case c.P2P:
		p2p = 1
	case c.MPA1 && c.Server == Siw:
		ours = append(ours, "--mpa-revision", "1")
	case c.MPA1:
		revision = 1
	}
	crc := 0
	if c.SiwCRC {
		crc = 1
	}
	call := "siw_serves"
	if c.Server == Ours {
		call = "we_serve"
	}
	return fmt.Sprintf("siw=(%s)\nours=(%s)\n%s %s %d %d %d %d", strings.Join(siw, " "), strings.Join(ours, " "), call, c.Name(), port, crc, p2p, revision)
}

// quote is s as one word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
