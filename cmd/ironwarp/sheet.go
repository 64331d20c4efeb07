package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// sheet is a table under construction.
type sheet struct {
	w       *ironwarp
	columns []column
	rows    [][]string
}

type column struct {
	name     string
	right    bool // aligned
	optional bool // left out where there is no room
}

// sheet starts a table. A column whose name starts with > is aligned right; one
// that starts with ? is left out where the table would be wider than the page,
// the last of them first.
func (w *ironwarp) sheet(columns ...string) *sheet {
	s := &sheet{w: w}
	for _, name := range columns {
		var c column
		name, c.optional = strings.CutPrefix(name, "?")
		c.name, c.right = strings.CutPrefix(name, ">")
		s.columns = append(s.columns, c)
	}
	return s
}

func (s *sheet) row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	s.rows = append(s.rows, row)
}

// gap is between two columns, and more is the heading in place of those left out.
const (
	gap  = "  "
	more = "..."
	// least is the width to which the widest column may be squeezed.
	least = 12
)

// fit chooses the columns that there is room for, and the width of the widest if even
// these are too wide, otherwise 0.
func (s *sheet) fit() (columns []int, widest, width int) {
	widths := make([]int, len(s.columns))
	total := 0
	for i, c := range s.columns {
		widths[i] = len(c.name)
		for _, r := range s.rows {
			for line := range strings.SplitSeq(r[i], "\n") {
				widths[i] = max(widths[i], text.StringWidthWithoutEscSequences(line))
			}
		}
		total += widths[i] + len(gap)
		columns = append(columns, i)
	}
	room := s.w.width + len(gap)
	if s.w.width == 0 || total <= room {
		return columns, -1, 0
	}
	room -= len(more) + len(gap)
	for i := len(s.columns) - 1; i >= 0 && total > room; i-- {
		if s.columns[i].optional {
			total -= widths[i] + len(gap)
			columns = slices.DeleteFunc(columns, func(c int) bool { return c == i })
		}
	}
	if total <= room {
		return columns, -1, 0
	}
	widest = columns[0]
	for _, c := range columns {
		if widths[c] > widths[widest] {
			widest = c
		}
	}
	return columns, widest, max(least, widths[widest]-(total-room))
}

func (s *sheet) print() {
	columns, widest, width := s.fit()
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", gap
	style.Format.Header = text.FormatUpper
	if s.w.terminal {
		style.Color.Header = text.Colors{text.Bold}
	}
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	var header table.Row
	var configs []table.ColumnConfig
	for at, i := range columns {
		c := s.columns[i]
		header = append(header, c.name)
		cfg := table.ColumnConfig{Number: at + 1}
		if c.right {
			cfg.Align, cfg.AlignHeader = text.AlignRight, text.AlignRight
		}
		if i == widest {
			cfg.WidthMax, cfg.WidthMaxEnforcer = width, text.WrapText
		}
		configs = append(configs, cfg)
	}
	if len(columns) < len(s.columns) {
		header = append(header, more)
	}
	t.SetColumnConfigs(configs)
	t.AppendHeader(header)
	for _, r := range s.rows {
		var row table.Row
		for _, i := range columns {
			row = append(row, r[i])
		}
		t.AppendRow(row)
	}
	fmt.Fprintln(s.w.stdout, t.Render())
}
