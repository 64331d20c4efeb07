package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"github.com/xrash/smetrics"
)

// flagsFirst puts the flags of a command line before its arguments, where the
// parser expects them; people write them anywhere. Words after -- stay as they are.
func flagsFirst(app *cli.App, words []string) []string {
	if len(words) == 0 {
		return words
	}
	out := []string{words[0]}
	commands, flags := app.Commands, app.Flags
	for i := 1; i < len(words); i++ {
		word := words[i]
		if isFlag(word) {
			n := flagWords(flags, words[i:])
			out = append(out, words[i:i+n]...)
			i += n - 1
			continue
		}
		c := commandOf(commands, word)
		if c == nil {
			return append(out, words[i:]...)
		}
		out = append(out, word)
		if c.ArgsUsage == programUsage {
			return append(out, beforeProgram(c.Flags, words[i+1:])...)
		}
		if len(c.Subcommands) == 0 {
			return append(out, partition(c.Flags, words[i+1:])...)
		}
		commands, flags = c.Subcommands, c.Flags
	}
	return out
}

// beforeProgram puts -- before a program and its arguments, which may have flags of their own.
func beforeProgram(flags []cli.Flag, words []string) []string {
	for i := 0; i < len(words); i++ {
		switch {
		case words[i] == "--":
			return words
		case !isFlag(words[i]):
			return slices.Concat(words[:i], []string{"--"}, words[i:])
		}
		i += flagWords(flags, words[i:]) - 1
	}
	return words
}

// partition returns flags with their values, then the rest.
func partition(flags []cli.Flag, words []string) []string {
	var first, rest []string
	for i := 0; i < len(words); i++ {
		switch {
		case words[i] == "--":
			return append(append(append(first, "--"), rest...), words[i+1:]...)
		case words[i] == "--help" || words[i] == "-h":
			return []string{"--help"} // of the command, not of its arguments
		case words[i] == completeFlag && i == len(words)-1:
			return append(append(first, rest...), words[i]) // behind the arguments that there are
		case isFlag(words[i]):
			n := flagWords(flags, words[i:])
			if f := flagOf(flags, words[i]); n == 1 && i == len(words)-1 && f != nil && takesValue(f) && !strings.Contains(words[i], "=") {
				return append(first, words[i]) // without the rest, which would be taken for its value
			}
			first = append(first, words[i:i+n]...)
			i += n - 1
		default:
			rest = append(rest, words[i])
		}
	}
	return append(first, rest...)
}

// isFlag reports whether a word is a flag; - alone is standard input.
func isFlag(word string) bool { return len(word) > 1 && word[0] == '-' }

// flagWords is the number of words that the flag in words[0] takes: 2 where its
// value is a word of its own.
func flagWords(flags []cli.Flag, words []string) int {
	if f := flagOf(flags, words[0]); len(words) > 1 && f != nil && !strings.Contains(words[0], "=") && takesValue(f) {
		return 2
	}
	return 1
}

func flagOf(flags []cli.Flag, word string) cli.Flag {
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	for _, f := range flags {
		for _, n := range f.Names() {
			if n == name {
				return f
			}
		}
	}
	return nil
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

func commandOf(commands []*cli.Command, name string) *cli.Command {
	for _, c := range commands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

// alike is how similar two words must be (Jaro-Winkler, 0 to 1) for one to be
// suggested in place of the other.
const alike = 0.8

// meant asks the user whether one of the known words was meant by word; "" if none is
// similar.
func meant(word string, known []string, prefix string) string {
	best, how := "", alike
	for _, k := range known {
		if s := smetrics.JaroWinkler(word, k, 0.7, 4); s >= how {
			best, how = k, s
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean `" + prefix + best + "`?"
}
