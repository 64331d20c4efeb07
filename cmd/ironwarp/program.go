package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/delegate"
)

// programUsage is the usage of arguments behind the first of which all are another program's.
const programUsage = "PROGRAM [ARGUMENT...]"

func (w *ironwarp) runCommand() *cli.Command {
	return &cli.Command{
		Name: "run", Usage: "run a program of libibverbs and librdmacm on IronWarp, without an adapter or a kernel module", ArgsUsage: programUsage,
		Description: "The program finds one RDMA device, ironwarp0, which is iWARP, and connects by librdmacm (perftest: -R). Nothing of the system is\n" +
			"changed: the program, and those that it starts, load another libibverbs.so.1.\n\n" +
			"The daemon protects its streams, at the ports that both hosts declare:\n\n" +
			"   ironwarp ulp add --peer PEER --ports 18432/512 --listen rdma\n" +
			"   ironwarp run -- ib_write_bw -R -p 18515            on one host\n" +
			"   ironwarp run -- ib_write_bw -R -p 18515 10.0.0.1   on the other\n\n" +
			"With --lab there is no daemon and no IPsec, and the program reaches this host alone, and the --peer given in clear:\n\n" +
			"   ironwarp run --lab -- ib_write_bw -R & ironwarp run --lab -- ib_write_bw -R 127.0.0.1",
		Action: w.runProgram,
		Flags: []cli.Flag{
			socketFlag(),
			&cli.BoolFlag{Name: "lab", Usage: "without IPsec: reach this host, by its loopback addresses, and the --peer given"},
			&cli.StringSliceFlag{Name: "peer", Usage: "with --lab: an `ADDRESS` that is reached in clear, may be given again"},
			&cli.StringFlag{Name: "transport", Usage: "`tcp|sctp-udp`; with the latter the port that is dialled is SCTP's and UDP's (IRONWARP_TRANSPORT; default: that of its ports, tcp)"},
			&cli.StringFlag{Name: "log", Usage: "append to `FILE` what goes on, for which a program has no words"},
		},
	}
}

func (w *ironwarp) runProgram(c *cli.Context) error {
	kind := cmp.Or(c.String("transport"), os.Getenv("IRONWARP_TRANSPORT"))
	switch {
	case c.Args().Len() == 0:
		return &usageError{msg: "which program?", fix: "ironwarp run -- ibv_devinfo"}
	case !c.Bool("lab") && c.IsSet("peer"):
		return &usageError{msg: "--peer is for --lab", fix: "add --lab: what goes to that host is in clear then"}
	case kind != "" && config.CheckProgramTransport(kind) != nil:
		return &usageError{msg: fmt.Sprintf("--transport %q", kind), fix: strings.Join(config.ProgramTransports(), " and ") + " are possible"}
	}
	peers := c.StringSlice("peer")
	for i, p := range peers {
		a, err := netip.ParseAddr(p)
		if err != nil || a.IsUnspecified() {
			return &usageError{msg: fmt.Sprintf("--peer %q is not an address of a host", p)}
		}
		peers[i] = a.Unmap().String()
	}
	dir, err := libraries()
	if err != nil {
		return err
	}
	path, err := exec.LookPath(c.Args().First())
	if err != nil {
		return err
	}
	reach := []string{"IRONWARP_LAB=" + strings.Join(peers, ",")}
	if !c.Bool("lab") {
		socket, err := w.programSocket(c, kind)
		if err != nil {
			return err
		}
		reach = []string{"IRONWARP_SOCKET=" + socket}
	}
	if kind != "" {
		reach = append(reach, "IRONWARP_TRANSPORT="+kind)
	}
	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return slices.Contains([]string{"LD_LIBRARY_PATH", "IRONWARP_LAB", "IRONWARP_TRANSPORT", "IRONWARP_SOCKET", "IRONWARP_RDMA_LOG"}, name)
	})
	search := dir
	if old := os.Getenv("LD_LIBRARY_PATH"); old != "" {
		search += ":" + old
	}
	env = append(append(env, "LD_LIBRARY_PATH="+search), reach...)
	if name := c.String("log"); name != "" {
		if name, err = filepath.Abs(name); err != nil {
			return err
		}
		env = append(env, "IRONWARP_RDMA_LOG="+name)
	}
	if err := syscall.Exec(path, c.Args().Slice(), env); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// programSocket is the daemon's control socket, after a look at whether it takes programs of this user over a transport; "":
// over any.
func (w *ironwarp) programSocket(c *cli.Context, kind string) (string, error) {
	socket, err := filepath.Abs(controlSocket(c))
	if err != nil {
		return "", err
	}
	client, err := delegate.New(c.Context, func(ctx context.Context) (*net.UnixConn, error) { return api.DialFlows(ctx, socket) }, nil)
	if err != nil {
		return "", err
	}
	defer client.Close()
	t := client.Terms()
	over := ""
	ports := t.Ports
	if k, err := transport.ParseKind(kind); err == nil {
		over, ports = " over "+kind, t.Of(k.Protocol())
	}
	if len(ports) == 0 {
		account := "root"
		if t.Account != "" {
			account = "ULP " + t.Account
		}
		flags := "--ports 18432/512"
		if kind == transport.SCTPUDP.String() {
			flags += " --transport " + kind
		}
		fix := "declare some on both hosts: `ironwarp ulp add --peer PEER " + flags + " --listen rdma`"
		if t.Account != "" {
			fix = fmt.Sprintf("root declares some on both hosts: here by `ironwarp ulp set %s --listen %s`", flags, t.Account)
		}
		return "", &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("%s has no ports for streams of programs%s", account, over),
			Fix: fix + "; or say --lab, for streams within this host"}
	}
	return socket, nil
}

// libraries finds the folder with libibverbs.so.1 and libironwarp-rnic.so: where `make rdma` puts it, or `make install`.
func libraries() (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", err
	}
	dirs := []string{filepath.Join(filepath.Dir(self), "rdma"), filepath.Join(filepath.Dir(self), "../lib/ironwarp")}
	for _, dir := range dirs {
		_, err := os.Stat(filepath.Join(dir, "libibverbs.so.1"))
		if _, err2 := os.Stat(filepath.Join(dir, "libironwarp-rnic.so")); err == nil && err2 == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("libibverbs.so.1 and libironwarp-rnic.so, with which programs run, are not in %s\nthey are in the package ironwarp-rdma, and `make rdma` builds them, with gcc, libibverbs-dev and librdmacm-dev", strings.Join(dirs, " or in "))
}
