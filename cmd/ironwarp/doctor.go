package main

import (
	"os"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/doctor"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) doctorCommand() *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "what this host lacks, what works instead, and what to do",
		Description: "It changes nothing. Exit status 1: something that is configured cannot work.",
		Flags: remote(configFlag(),
			&cli.BoolFlag{Name: "strongswan-conf", Usage: "print the strongswan.conf that userland ESP needs"},
		),
		Action: w.doctor,
	}
}

func (w *ironwarp) doctor(c *cli.Context) error {
	if c.Bool("strongswan-conf") {
		w.printf("%s", doctor.StrongSwanConf)
		return nil
	}
	path, named := configPath(c)
	socket := set(c, "socket")
	if socket == "" {
		socket = os.Getenv("IRONWARP_SOCKET")
	}
	findings := doctor.Run(c.Context, doctor.Options{Config: path, Named: named, Socket: socket, Version: version})
	err := w.print(c, findings, func() { w.findings(findings) })
	if err == nil && doctor.Worst(findings) == doctor.Fail {
		return silent(1)
	}
	return err
}

func (w *ironwarp) findings(list []doctor.Finding) {
	for _, f := range list {
		w.printf("%-4s  %-17s %s\n", w.levelText(f.Level), f.What, strings.ReplaceAll(f.Found, "\n", "\n"+strings.Repeat(" ", 24)))
		if f.Instead != "" {
			w.printf("%24sworks instead: %s\n", "", f.Instead)
		}
		for _, do := range f.Do {
			w.printf("%24sdo: %s\n", "", do)
		}
	}
	w.printf("\n%s\n", map[string]string{
		doctor.OK:   "Nothing is missing.",
		doctor.Note: "Nothing that is configured lacks anything.",
		doctor.Warn: "It works; look at the warnings.",
		doctor.Fail: "Something that is configured cannot work: see fail.",
	}[doctor.Worst(list)])
}

// levelText pads before it paints, so that columns stay aligned.
func (w *ironwarp) levelText(level string) string {
	text := (level + "    ")[:4]
	switch level {
	case doctor.OK:
		return w.good(text)
	case doctor.Warn:
		return w.warn(text)
	case doctor.Fail:
		return w.bad(text)
	}
	return text
}
