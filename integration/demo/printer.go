package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// printer writes the story: one line per step, a bar while a step takes long,
// and the table of claims.
type printer struct {
	w        *os.File
	terminal bool

	mu      sync.Mutex // guards the fields below it
	name    string
	started time.Time
}

func newPrinter(w *os.File) *printer {
	st, err := w.Stat()
	return &printer{w: w, terminal: err == nil && st.Mode()&os.ModeCharDevice != 0}
}

func (p *printer) line(format string, args ...any) { fmt.Fprintf(p.w, format+"\n", args...) }

// step begins a step; done ends it.
func (p *printer) step(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name, p.started = name, time.Now()
	if p.terminal {
		fmt.Fprintf(p.w, "%-8s ...", name)
	}
}

// progress shows how far the current step is, on a terminal.
func (p *printer) progress(fraction float64, text string) {
	const width = 30
	if !p.terminal {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	full := int(min(max(fraction, 0), 1) * width)
	fmt.Fprintf(p.w, "\r\033[K%-8s [%s%s] %s", p.name, strings.Repeat("#", full), strings.Repeat("-", width-full), text)
}

func (p *printer) done(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal {
		fmt.Fprint(p.w, "\r\033[K")
	}
	fmt.Fprintf(p.w, "%-8s %s  (%.1f s)\n", p.name, fmt.Sprintf(format, args...), time.Since(p.started).Seconds())
}

// summary prints the claims and returns how many do not hold.
func (p *printer) summary(claims []claim) (failed int) {
	width := 0
	for _, c := range claims {
		width = max(width, len(c.text))
	}
	p.line("")
	for _, c := range claims {
		word, on, off := "ok  ", "\033[32m", "\033[0m"
		if !c.ok {
			failed++
			word, on = "FAIL", "\033[31m"
		}
		if !p.terminal {
			on, off = "", ""
		}
		p.line("%s%s%s  %-*s  %s", on, word, off, width, c.text, c.detail)
	}
	return failed
}
