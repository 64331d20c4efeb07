package main

import (
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/profile"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) profileCommand() *cli.Command {
	return &cli.Command{
		Name:  "profile",
		Usage: "IPsec profiles: what IKE and ESP may use, and what the RFCs say about it",
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list the built-in profiles and those of the configuration", Flags: []cli.Flag{configFlag(), jsonFlag()}, Action: w.profileList},
			{
				Name: "show", Usage: "show each setting of a profile with its RFC clause", ArgsUsage: "NAME",
				Flags: []cli.Flag{configFlag(), jsonFlag()}, Action: w.profileShow,
				BashComplete: func(c *cli.Context) {
					for _, name := range profile.Names() {
						w.printf("%s\n", name)
					}
				},
			},
		},
	}
}

func (w *ironwarp) profileList(c *cli.Context) error {
	cfg, err := config.Load(configPath(c))
	if err != nil {
		return err
	}
	list := []*profile.Profile{}
	for _, name := range cfg.ProfileNames() {
		p, err := cfg.ProfileByName(name)
		if err != nil {
			return err
		}
		list = append(list, p)
	}
	return w.print(c, list, func() {
		t := w.sheet("profile", "ike", "mode", "esp, best first")
		for _, p := range list {
			t.row(p.Name, fmt.Sprintf("v%d%s", p.Version, map[bool]string{true: " aggressive"}[p.Aggressive]), p.Mode, strings.Join(p.ESP[:min(3, len(p.ESP))], " "))
		}
		t.print()
	})
}

func (w *ironwarp) profileShow(c *cli.Context) error {
	cfg, err := config.Load(configPath(c))
	if err != nil {
		return err
	}
	p, err := cfg.ProfileByName(c.Args().First())
	if err != nil {
		return &usageError{msg: err.Error()}
	}
	clauses := p.Clauses()
	return w.print(c, struct {
		*profile.Profile
		Clauses  []profile.Clause `json:"clauses"`
		Warnings []string         `json:"warnings,omitempty"`
	}{p, clauses, p.Warnings()}, func() {
		t := w.sheet("setting", "value", "rfc", "level", "what it says")
		for _, cl := range clauses {
			t.row(cl.Setting, cl.Value, orDash(cl.RFC), orDash(cl.Level), cl.Text)
		}
		t.print()
		for _, warning := range p.Warnings() {
			w.printf("%s\n", w.bad("INSECURE: "+warning))
		}
	})
}
