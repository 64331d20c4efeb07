package main

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/urfave/cli/v2"
)

// printJSON prints one value for programs.
func (w *ironwarp) printJSON(v any) error {
	enc := json.NewEncoder(w.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(api.Lists(v))
}

// print prints JSON if it was asked for; otherwise it calls human.
func (w *ironwarp) print(c *cli.Context, v any, human func()) error {
	if asJSON(c) {
		return w.printJSON(v)
	}
	human()
	return nil
}

func (w *ironwarp) printf(format string, a ...any) { fmt.Fprintf(w.stdout, format, a...) }

// good, bad, warn and bold mark a word on a terminal.
func (w *ironwarp) good(s string) string { return w.paint(s, text.FgGreen) }
func (w *ironwarp) bad(s string) string  { return w.paint(s, text.FgRed) }
func (w *ironwarp) warn(s string) string { return w.paint(s, text.FgYellow) }
func (w *ironwarp) bold(s string) string { return w.paint(s, text.Bold) }

func (w *ironwarp) paint(s string, c text.Color) string {
	if !w.terminal {
		return s
	}
	return text.Colors{c}.Sprint(s)
}

// progress shows on stderr what is going on: redrawn on a terminal, otherwise a line
// each.
type progress struct {
	w    *ironwarp
	last string
}

func (p *progress) show(s string) {
	if s == "" || s == p.last {
		return
	}
	p.last = s
	if p.w.errTerminal {
		fmt.Fprintf(p.w.stderr, "\r\x1b[K%s ...", s)
		return
	}
	fmt.Fprintf(p.w.stderr, "%s\n", s)
}

func (p *progress) end() {
	if p.last != "" && p.w.errTerminal {
		fmt.Fprint(p.w.stderr, "\r\x1b[K")
	}
}

// bytesText writes a number of bytes for people: 3 significant digits, binary units.
func bytesText(v float64) string {
	const units = "KMGTPE"
	if v < 1024 {
		return fmt.Sprintf("%.0f B", v)
	}
	e := min(int(math.Log2(v)/10), len(units))
	v /= math.Pow(1024, float64(e))
	if v >= 999.5 && e < len(units) {
		v, e = v/1024, e+1
	}
	digits := 2
	if v >= 99.95 {
		digits = 0
	} else if v >= 9.995 {
		digits = 1
	}
	return fmt.Sprintf("%.*f %ciB", digits, v, units[e-1])
}

func rateText(v float64) string {
	if v == 0 {
		return "-"
	}
	return bytesText(v) + "/s"
}

func countText(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v < 10:
		return fmt.Sprintf("%.1f", v)
	case v < 100_000:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.0fk", v/1000)
}

// ageText writes a time span in its two largest units.
func ageText(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < 0:
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// microsText writes a number of microseconds for people.
func microsText(v float64) string {
	switch {
	case v <= 0:
		return "-"
	case v < 1000:
		return fmt.Sprintf("%.1f us", v)
	case v < 1e6:
		return fmt.Sprintf("%.2f ms", v/1e3)
	}
	return fmt.Sprintf("%.2f s", v/1e6)
}
