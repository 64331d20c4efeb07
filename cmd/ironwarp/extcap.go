package main

import (
	"io"
	"os"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

// extcapInterface is what Wireshark calls the daemon's streams.
const extcapInterface = "ironwarp"

func (w *ironwarp) extcapCommand() *cli.Command {
	return &cli.Command{
		Name: "extcap", Usage: "be an interface of Wireshark's, which runs this",
		Description: "The extcap protocol of Wireshark. packaging/wireshark/ironwarp-extcap, copied into Wireshark's directory for extcap programs, runs this command; docs/capture.md says how.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "extcap-interfaces", Usage: "list the interfaces"},
			&cli.BoolFlag{Name: "extcap-dlts", Usage: "list the link types of an interface"},
			&cli.BoolFlag{Name: "extcap-config", Usage: "list the options of an interface"},
			&cli.StringFlag{Name: "extcap-interface", Usage: "`INTERFACE` that is meant"},
			&cli.StringFlag{Name: "extcap-version", Usage: "`VERSION` of Wireshark"},
			&cli.StringFlag{Name: "extcap-capture-filter", Usage: "`FILTER`, of which there are none"},
			&cli.BoolFlag{Name: "capture", Usage: "capture"},
			&cli.StringFlag{Name: "fifo", Usage: "`FILE` to write the capture to"},
			&cli.StringFlag{Name: "peer", Usage: "of streams with `PEER` alone"},
			&cli.BoolFlag{Name: "payload", Usage: "with all that streams carry"},
			socketFlag(),
		},
		Action: w.extcap,
	}
}

// extcap answers one of the questions of https://www.wireshark.org/docs/wsdg_html_chunked/ChCaptureExtcap.html.
func (w *ironwarp) extcap(c *cli.Context) error {
	if !c.Bool("extcap-interfaces") && c.String("extcap-interface") != extcapInterface {
		return &usageError{msg: "there is no such interface", fix: "--extcap-interface " + extcapInterface}
	}
	switch {
	case c.Bool("extcap-interfaces"):
		w.printf("extcap {version=%s}{help=https://github.com/ironwarp/ironwarp/blob/main/docs/capture.md}\n", version)
		w.printf("interface {value=%s}{display=RDMA streams of IronWarp, in clear}\n", extcapInterface)
	case c.Bool("extcap-dlts"):
		w.printf("dlt {number=101}{name=RAW}{display=IP}\n")
	case c.Bool("extcap-config"):
		w.printf("arg {number=0}{call=--peer}{display=Peer}{type=string}{tooltip=streams with this peer alone; empty: with all}\n")
		w.printf("arg {number=1}{call=--payload}{display=Payload}{type=boolflag}{default=false}{tooltip=with all that streams carry, such as what is on disks}\n")
		w.printf("arg {number=2}{call=--socket}{display=Control socket}{type=string}{tooltip=of the daemon; empty: the usual one}\n")
	case c.Bool("capture"):
		if c.String("extcap-capture-filter") != "" {
			return &usageError{msg: "there are no capture filters", fix: "choose a peer in the options of the interface"}
		}
		if c.String("fifo") == "" {
			return &usageError{msg: "--fifo is missing"}
		}
		_, err := w.captureTo(c, api.CaptureRequest{Peer: c.String("peer"), Payload: c.Bool("payload")}, func() (io.WriteCloser, error) {
			return os.OpenFile(c.String("fifo"), os.O_WRONLY, 0)
		})
		return err
	default:
		return &usageError{msg: "nothing is asked", fix: "Wireshark asks with --extcap-interfaces, --extcap-dlts, --extcap-config or --capture"}
	}
	return nil
}
