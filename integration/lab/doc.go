// Package lab makes hosts for tests and demonstrations: network namespaces on
// one wire, each with a strongSwan of its own, and captures that count what
// crossed that wire.
//
//	l := lab.Start(t, lab.Config{})       // hosts alpha and beta
//	a, b := l.Host("alpha"), l.Host("beta")
//	c, _ := b.Capture(ctx, lab.CaptureOptions{})
//	out, err := a.Run(ctx, "ping", "-c1", b.Addr().String())
//	counts, _ := c.Stop()
//	if counts.Clear(7471) != 0 { ... }
//
// The hosts are joined by a switch, where captures are made. With Config.Wires there
// are several switches, each with an address of its own on every host, as on multihomed
// hosts.
//
// A host has a directory: run is its /run (with charon.vici and charon.pid in it),
// strongswan.conf and charon.log stand beside it. What a lab makes has names that begin
// with "iwlab-", the owner's process id and its start time, so that several labs can
// run side by side and a later one can remove what a killed owner has left.
//
// A lab needs root, /dev/net/tun, ip, tcpdump and charon; Require says what is
// missing. ESP is the kernel's where esp.ProbeKernel finds it there, else that of
// strongSwan's kernel-libipsec plugin.
package lab
