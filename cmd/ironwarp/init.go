package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) initCommand() *cli.Command {
	return &cli.Command{
		Name: "init", Usage: "write a first configuration, and say what comes next",
		Description: "It makes the directory of the configuration, and those of secrets and declarations, which root alone may read, and a main file\n" +
			"if there is none. It overwrites nothing: run it again to see what is there, and what is missing.",
		Flags: []cli.Flag{configFlag(), jsonFlag(), socketFlag(),
			&cli.UintFlag{Name: "port", Usage: "TCP and SCTP `PORT` of streams, the same on both hosts", Value: config.DefaultPort},
			&cli.UintFlag{Name: "udp-port", Usage: "UDP `PORT` of SCTP in UDP, the same on both hosts", Value: config.DefaultUDPPort},
			&cli.StringSliceFlag{Name: "address", Usage: "`ADDRESS` of this host to listen on; repeat for more (default: the one that the route to each peer uses)"},
		},
		Action: w.initialise,
	}
}

// initialised is what init prints as JSON.
type initialised struct {
	Config    string   `json:"config"`
	Created   []string `json:"created"`
	Kept      []string `json:"kept"`
	Changed   []string `json:"changed"`   // modes
	Addresses []string `json:"addresses"` // of this host, which are its IKE identities unless a peer says local_id
	Next      []string `json:"next"`
}

func (w *ironwarp) initialise(c *cli.Context) error {
	if os.Geteuid() != 0 {
		return &api.Error{Code: api.CodeForbidden, Message: "the configuration, with its secrets, belongs to root: init makes it as root alone", Fix: "run it with sudo"}
	}
	path, _ := configPath(c)
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	text, err := firstConfig(c)
	if err != nil {
		return err
	}
	v := initialised{Config: path, Created: []string{}, Kept: []string{}, Changed: []string{}, Next: []string{}}
	for _, dir := range config.Directories(path) {
		if err := v.makeDir(dir, dir == filepath.Dir(config.SecretPath(path, ""))); err != nil {
			return err
		}
	}
	switch _, err := os.Lstat(path); {
	case err == nil:
		v.Kept = append(v.Kept, path)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	default:
		if err := wholefile.Write(path, []byte(text)); err != nil {
			return fmt.Errorf("write the configuration: %w", err)
		}
		v.Created = append(v.Created, path)
	}
	cfg, err := config.Load(path, true)
	if err != nil {
		return fmt.Errorf("what is there has faults; init has not touched it:\n%w", err)
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, n := range all {
		if p, err := netip.ParsePrefix(n.String()); err == nil && p.Addr().Unmap().IsGlobalUnicast() {
			v.Addresses = append(v.Addresses, p.Addr().Unmap().String())
		}
	}
	v.Next = w.nextSteps(c, cfg)
	return w.print(c, v, func() {
		for _, l := range v.Created {
			w.printf("made     %s\n", l)
		}
		for _, l := range v.Changed {
			w.printf("changed  %s\n", l)
		}
		for _, l := range v.Kept {
			w.printf("kept     %s\n", l)
		}
		w.printf("ports    %d (TCP and SCTP), %d (UDP, for SCTP in it), the same on both hosts; 500 and 4500 (UDP) for IKE\n", cfg.ListenPort, cfg.ListenUDPPort)
		w.printf("identity %s, unless a peer says another local_id\n", orDash(strings.Join(v.Addresses, ", or ")))
		w.printf("\nnext:\n")
		for _, l := range v.Next {
			w.printf("  %s\n", l)
		}
	})
}

// makeDir makes a directory that root alone may use. One that is there is left alone, unless it is that of secrets.
func (v *initialised) makeDir(dir string, secrets bool) error {
	st, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		v.Created = append(v.Created, dir+" (mode 0700)")
	case err != nil:
		return err
	case !st.IsDir():
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("%s is no directory", dir), Fix: "move it away, and run init again"}
	case secrets && st.Mode().Perm()&0o077 != 0:
		if err := os.Chmod(dir, 0o700); err != nil {
			return err
		}
		v.Changed = append(v.Changed, fmt.Sprintf("%s: mode %#o before, 0700 now", dir, st.Mode().Perm()))
	default:
		v.Kept = append(v.Kept, dir)
	}
	return nil
}

// firstConfig is the main file that the flags ask for. It fails where no daemon could start with it.
func firstConfig(c *cli.Context) (string, error) {
	port, udp := c.Uint("port"), c.Uint("udp-port")
	if port == 0 || port > 65535 {
		return "", &usageError{msg: fmt.Sprintf("--port %d is out of range", port), fix: "allowed: 1 to 65535"}
	}
	if udp == 0 || udp > 65535 || config.CheckUDPPort(uint16(udp)) != nil {
		return "", &usageError{msg: fmt.Sprintf("--udp-port %d is out of range, or IKE's own", udp), fix: "allowed: 1 to 65535, but for 500 and 4500"}
	}
	var at []string
	for _, s := range c.StringSlice("address") {
		a, err := config.ParseAddr(s)
		if err != nil {
			return "", &usageError{msg: "--address " + err.Error()}
		}
		at = append(at, fmt.Sprintf("%q", a))
	}
	return fmt.Sprintf(`# Made by ironwarp init. Everything has a default: %s is valid, too.
# ironwarp peer, export, target and ulp keep what they declare in the directories beside this file.
listen:
  port: %d        # of TCP and SCTP, the same on both hosts
  udp_port: %d    # of SCTP in UDP, the same on both hosts
  addresses: [%s]   # empty: the address that the route to each peer uses
`, "{}", port, udp, strings.Join(at, ", ")), nil
}

// nextSteps are those that are left to do.
func (w *ironwarp) nextSteps(c *cli.Context, cfg *config.Config) (next []string) {
	if _, err := os.Stat(strings.TrimPrefix(cfg.IPsec.VICI, "unix://")); err != nil {
		next = append(next, "systemctl enable --now strongswan     (Debian: apt-get install charon-systemd libstrongswan-standard-plugins)")
	}
	cl := w.client(c)
	defer cl.Close()
	if _, err := cl.Info(c.Context); err != nil {
		next = append(next, "systemctl enable --now ironwarp")
	}
	if len(cfg.Peers) == 0 {
		next = append(next, "ironwarp peer invite                  (here, and on the other host: ironwarp peer join)")
	}
	return append(slices.Clip(next), "ironwarp doctor                       (what this host lacks)")
}
