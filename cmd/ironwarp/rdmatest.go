package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"time"

	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/iscsitest"
	"github.com/ironwarp/ironwarp/iwarptest/agent"
	"github.com/ironwarp/ironwarp/rdmatest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/urfave/cli/v2"
)

// defaultTestPort is the first port of `rdma test`.
const defaultTestPort = 7300

func (w *ironwarp) rdmaCommand() *cli.Command {
	return &cli.Command{
		Name: "rdma", Usage: "judge another RDMA stack, without the daemon",
		Subcommands: []*cli.Command{
			{
				Name: "test", Usage: "judge an RDMA device of Linux, such as an adapter or soft-iWARP, by the sentences of the RFCs", ArgsUsage: "[HOST]", Action: w.rdmaTest,
				Description: "HOST has the device, and runs the agent of `ironwarp rdma agent`. This host opens streams to it, and it to this host, by iWARP over\n" +
					"TCP. The exit status is 1 if the device has failed a case.\n\n" +
					"   ironwarp rdma test --agent 'ssh beta ./iwarp-agent siw0' --insecure-plaintext beta",
				Flags: []cli.Flag{jsonFlag(),
					&cli.StringFlag{Name: "agent", Usage: "`COMMAND` for sh that runs the agent there, with the device's name behind it"},
					&cli.StringSliceFlag{Name: "only", Usage: "cases: a `GLOB` of their names, may be given again"},
					&cli.BoolFlag{Name: "list", Usage: "list the cases, and test nothing"},
					&cli.UintFlag{Name: "port", Value: defaultTestPort, Usage: "first of two TCP `PORT`s, there and here"},
					&cli.StringFlag{Name: "local-address", Usage: "this host's `ADDRESS` (default: by the route)"},
					&cli.BoolFlag{Name: "no-crc", Usage: "do not ask for CRCs"},
					&cli.StringFlag{Name: "junit", Usage: "write JUnit's XML to `FILE`"},
					&cli.BoolFlag{Name: "trace", Usage: "print what the agent was told, and has said, in each case that has not passed"},
					&cli.BoolFlag{Name: "insecure-plaintext", Usage: "reach other hosts in clear: for labs only"},
				},
			},
			{
				Name: "agent", Usage: "write the source of the agent, for a host with a C compiler and rdma-core", ArgsUsage: "DIRECTORY", Action: w.rdmaAgent, Flags: []cli.Flag{jsonFlag()},
			},
		},
	}
}

func (w *ironwarp) rdmaAgent(c *cli.Context) error {
	v := struct {
		Directory string `json:"directory"`
		Compile   string `json:"compile"`
	}{Directory: c.Args().First()}
	var err error
	if v.Compile, err = agent.WriteSource(v.Directory); err != nil {
		return err
	}
	return w.print(c, v, func() {
		w.printf("the source is in %s; copy it to the host with the device, and there:\n%s\n", v.Directory, v.Compile)
		w.printf("Debian has what it takes in gcc, libibverbs-dev and librdmacm-dev; `rdma link` lists devices\n")
	})
}

func (w *ironwarp) rdmaTest(c *cli.Context) error {
	cases, err := rdmatest.Select(c.StringSlice("only"))
	switch {
	case err != nil:
		return &usageError{msg: err.Error()}
	case len(cases) == 0:
		return &usageError{msg: "--only leaves no case", fix: "ironwarp rdma test --list"}
	case c.Bool("list"):
		return w.print(c, cases, func() {
			for _, x := range cases {
				w.printf("%s\n    %s\n", x.ID, x.Source)
			}
		})
	case c.Args().Len() != 1:
		return &usageError{msg: "one host is to be named", fix: "ironwarp rdma test --agent COMMAND HOST"}
	case c.String("agent") == "":
		return &usageError{msg: "nobody runs the agent", fix: "--agent 'ssh HOST ./iwarp-agent DEVICE'; `ironwarp rdma agent DIRECTORY` writes its source"}
	case c.Uint("port") == 0 || c.Uint("port") > 65534:
		return &usageError{msg: fmt.Sprintf("port %d is out of range", c.Uint("port")), fix: "allowed: 1 to 65534"}
	}
	o := rdmatest.Options{Only: c.StringSlice("only"), Port: uint16(c.Uint("port")), NoCRC: c.Bool("no-crc"), Agent: func() *exec.Cmd { return exec.Command("sh", "-c", c.String("agent")) }}
	if err := w.rdmaWay(c, &o); err != nil {
		return err
	}
	began := time.Now()
	p := &progress{w: w}
	o.Progress = func(x *iscsitest.Result, done, all int) { w.tell(c, p, x, done, all) }
	r, err := rdmatest.Run(c.Context, o)
	p.end()
	if r == nil {
		return err
	}
	err = errors.Join(err, w.keepReports(c, []*iscsitest.Report{r}))
	if asJSON(c) {
		err = errors.Join(err, w.printJSON(r))
	} else if len(r.Results) > 0 {
		w.printf("%s, in %.1f s\n", r.Summary(), time.Since(began).Seconds())
	}
	if err == nil && r.Bad() {
		return silent(1)
	}
	return err
}

// rdmaWay says how the peer is reached: within this host, or in clear where that is allowed.
func (w *ironwarp) rdmaWay(c *cli.Context, o *rdmatest.Options) error {
	all, err := net.DefaultResolver.LookupNetIP(c.Context, "ip", c.Args().First())
	if err != nil {
		return fmt.Errorf("the host %s is not known: %w", c.Args().First(), err)
	}
	o.Peer = all[0].Unmap()
	if local := c.String("local-address"); local != "" {
		o.Local, err = netip.ParseAddr(local)
	} else {
		o.Local, err = listen.LocalAddr(o.Peer)
	}
	if err != nil {
		return &usageError{msg: err.Error(), fix: "--local-address ADDRESS"}
	}
	o.Transport = &transport.Config{Protector: transport.LoopbackOnly(), Local: o.Local}
	if o.Peer.IsLoopback() {
		return nil
	}
	if !c.Bool("insecure-plaintext") {
		return &usageError{msg: fmt.Sprintf("%s is another host, and would be reached in clear: this has no IPsec", o.Peer), fix: "--insecure-plaintext, for a lab"}
	}
	o.Transport.Protector = transport.Plaintext(slog.New(slog.DiscardHandler), o.Peer)
	return nil
}
