package main

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// command is a program's help on one of its commands.
type command struct {
	subs  map[string]bool
	flags map[string]bool // name with dashes -> takes a value
}

// commandTree runs help lazily: only for commands that a document names.
type commandTree struct {
	help  func(path []string) (string, error)
	known map[string]*command
	err   error // the first call for help that failed
}

func askHelp(help func([]string) (string, error)) *commandTree {
	return &commandTree{help: help, known: make(map[string]*command)}
}

func runHelp(binary string) func([]string) (string, error) {
	return func(path []string) (string, error) {
		args := append(slices.Clone(path), "--help")
		out, err := exec.Command(binary, args...).Output()
		if err != nil {
			return "", fmt.Errorf("%s %s: %w", binary, strings.Join(args, " "), err)
		}
		return string(out), nil
	}
}

// at returns the command with this path of names, nil if help failed.
func (t *commandTree) at(path []string) *command {
	key := strings.Join(path, " ")
	if c, ok := t.known[key]; ok {
		return c
	}
	text, err := t.help(path)
	if err != nil {
		if t.err == nil {
			t.err = err
		}
		t.known[key] = nil
		return nil
	}
	c := parseHelp(text)
	t.known[key] = c
	return c
}

// parseHelp reads the help text of urfave/cli: the names under COMMANDS and
// the flags under OPTIONS and GLOBAL OPTIONS.
func parseHelp(text string) *command {
	c := &command{subs: make(map[string]bool), flags: make(map[string]bool)}
	section := ""
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && line[0] != ' ' {
			section = strings.TrimSuffix(strings.TrimSpace(line), ":")
			continue
		}
		entry := strings.TrimSpace(line)
		// Names and usage are set apart by two spaces or more.
		names, _, _ := strings.Cut(entry, "  ")
		switch {
		case entry == "":
		case section == "COMMANDS":
			if strings.HasSuffix(names, ":") { // a category
				continue
			}
			for n := range strings.SplitSeq(names, ", ") {
				c.subs[n] = true
			}
		case section == "OPTIONS" || section == "GLOBAL OPTIONS":
			for n := range strings.SplitSeq(names, ", ") {
				name, _, takesValue := strings.Cut(n, " ")
				if strings.HasPrefix(name, "-") {
					c.flags[name] = takesValue
				}
			}
		}
	}
	return c
}
