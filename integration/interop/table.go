package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/ironwarp/ironwarp/integration/vm"
)

// open is what is known and not understood.
const open = `## Open

- On a host with five times as many runnable threads as processors, one case in about a hundred has ended with a wrong CRC in an FPDU
  that siw had sent: row "siw rping as server, CRC, which only we ask for, 60000 bytes", the RDMA Write of the first ping. TCP had lost
  and repeated nothing. Whether siw, the emulated processor or IronWarp computed it wrongly is not known. The capture that a failed
  run leaves holds whole packets, to tell.
`

// columns are a verdict's row.
func columns(v Verdict) (peer, ip, feature, result string) {
	peer, ip = "siw rping as client", "IPv4"
	if v.Server == Siw {
		peer = "siw rping as server"
	}
	if v.IPv6 {
		ip = "IPv6"
	}
	return peer, ip, v.Feature(), v.Result()
}

func printTable(w io.Writer, vs []Verdict) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "peer\tnetwork\tfeature\tresult")
	for _, v := range vs {
		peer, ip, feature, result := columns(v)
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", peer, ip, feature, result)
	}
	t.Flush()
}

func summary(vs []Verdict) string {
	worked, lacking, wrong := 0, 0, 0
	for _, v := range vs {
		switch {
		case !v.Expected():
			wrong++
		case v.Worked:
			worked++
		default:
			lacking++
		}
	}
	return fmt.Sprintf("%d worked, %d can't work with this peer, %d unexpected", worked, lacking, wrong)
}

// writeDocument writes the table as Markdown.
func writeDocument(w io.Writer, im *vm.Image, vs []Verdict) {
	fmt.Fprintf(w, `# Interoperation

`+"`make interop`"+` wrote this. It boots a virtual machine and runs IronWarp against Linux' soft-iWARP (siw), both on its two ends of a virtual
wire: siw with rping of librdmacm, IronWarp with `+"`ironwarp rping`"+`, which speaks the same protocol. A ping moves its payload by an RDMA
Read and back by an RDMA Write, with Sends in between. A row is ok when %d pings came back whole: both ends printed the same texts,
the client compared them byte by byte, and our end saw the stream end as it should. A capture has to show the MPA start-up that
the row names: revision, CRC, and in the peer-to-peer model the first message that was agreed on.

Linux %s; siw and kernel from Debian's packages %s.

| peer | network | feature | result |
|---|---|---|---|
`, pings, im.Kernel, im.Version)
	for _, v := range vs {
		peer, ip, feature, result := columns(v)
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", peer, ip, feature, result)
	}
	fmt.Fprintf(w, "\n%s.\n\n%s", summary(vs), open)
}
