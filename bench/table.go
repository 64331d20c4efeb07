package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

func printTable(w io.Writer, results []result) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "work\tours\trival\tunit\tratio\taim\t\t")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n",
			r.Name, figure(&r.Ours), figure(r.Rival), r.Unit, ratio(r.Ratio), r.aimText(), r.verdict())
	}
	tw.Flush()
	for _, r := range results {
		if r.Note != "" {
			fmt.Fprintf(w, "  %s: %s\n", strings.TrimSpace(r.Name), r.Note)
		}
	}
}

func figure(v *float64) string {
	if v == nil {
		return "-"
	}
	switch a := math.Abs(*v); {
	case a == 0 || a >= 1000:
		return fmt.Sprintf("%.0f", *v)
	case a >= 10:
		return fmt.Sprintf("%.1f", *v)
	}
	return fmt.Sprintf("%.2f", *v)
}

func ratio(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *v)
}

func (r result) aimText() string {
	switch {
	case r.Aim == nil:
		return "-"
	case r.absolute:
		return fmt.Sprintf("<= %g", *r.Aim)
	case r.less:
		return fmt.Sprintf("<= %.2g", *r.Aim)
	}
	return fmt.Sprintf(">= %.2g", *r.Aim)
}

func (r result) verdict() string {
	switch {
	case r.Met == nil:
		return "shown"
	case *r.Met:
		return "met"
	}
	return "BELOW"
}

func writeJSON(path string, results []result) error {
	b, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
