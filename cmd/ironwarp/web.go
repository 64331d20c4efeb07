package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/doctor"
	"github.com/ironwarp/ironwarp/daemon/web"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) webCommand() *cli.Command {
	return &cli.Command{
		Name: "web", Usage: "show the host to a browser: peers, SAs, disks, rates and events, live",
		Description: "It prints the address of a page, which is served until Ctrl-C, shows what the user may see who runs the\n" +
			"command, and changes nothing. Whoever knows the address can see the page on this host: keep it for yourself.\n" +
			"From another host it is reached by ssh -L 9745:127.0.0.1:9745 HOST.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "listen", Value: "127.0.0.1:9745", Usage: "loopback `ADDRESS:PORT`, or unix:PATH of a socket"},
			&cli.StringFlag{Name: "url-file", Usage: "write the page's address to `FILE`, with mode 0600, and do not print it"},
			&cli.DurationFlag{Name: "interval", Value: web.DefaultInterval, Usage: "`TIME` between questions to the daemon"},
			socketFlag(), configFlag(),
		},
		Action: w.web,
	}
}

func (w *ironwarp) web(c *cli.Context) error {
	file, err := fileFlag(c, "url-file")
	switch {
	case err != nil:
		return err
	case c.Duration("interval") < web.MinInterval:
		return &usageError{msg: "--interval is too short", fix: fmt.Sprintf("use at least %s", web.MinInterval)}
	case file == "" && !w.terminal:
		// What is no terminal may be a log.
		return &usageError{msg: "standard output is no terminal, and the page's address is a secret", fix: "name a file for it with --url-file FILE; it is readable by you alone"}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "this host"
	}
	socket := controlSocket(c)
	config, named := configPath(c)
	cl := w.client(c)
	defer cl.Close()
	s := web.New(web.Options{Source: cl, Host: host, Interval: c.Duration("interval"), Doctor: func(ctx context.Context) []doctor.Finding {
		return doctor.Run(ctx, doctor.Options{Config: config, Named: named, Socket: socket, Version: version})
	}})
	ln, err := web.Listen(c.Context, c.String("listen"))
	if err != nil {
		return err
	}
	if err := w.tellPage(ln.Addr(), s.Path(), file); err != nil {
		ln.Close()
		return err
	}
	if file != "" {
		defer os.Remove(file)
	}
	return s.Serve(c.Context, ln)
}

// tellPage says where the page is: on the terminal, or in a file.
func (w *ironwarp) tellPage(at net.Addr, path, file string) error {
	address, unix := "http://"+at.String()+path, at.Network() == "unix"
	if unix {
		address = "http://localhost:9745" + path
	}
	if file != "" {
		if err := wholefile.Write(file, []byte(address+"\n")); err != nil {
			return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot write the page's address to %s: %v", file, err), Fix: "name another file, in a directory that is there and yours"}
		}
		w.printf("serving; the page's address is in %s\n", file)
		return nil
	}
	w.printf("%s\n", w.bold(address))
	if unix {
		socket, err := filepath.Abs(at.String())
		if err != nil {
			socket = at.String()
		}
		w.printf("by ssh -L 9745:%s HOST\n", socket)
	}
	w.printf("Who knows this address can see the page on this host. It changes nothing. Ctrl-C ends it.\n")
	return nil
}
