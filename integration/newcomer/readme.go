package newcomer

import (
	"fmt"
	"slices"
	"strings"
)

// block is the commands between two fences.
type block struct {
	section  string // the heading of second rank above it
	heading  string // the heading next above it
	commands []string
}

// blocks returns the blocks of commands of a document.
func blocks(markdown string) (all []block) {
	var section, heading string
	var open *block
	for line := range strings.Lines(markdown) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```") && open == nil:
			open = &block{section: section, heading: heading}
		case strings.HasPrefix(line, "```"):
			all = append(all, *open)
			open = nil
		case open != nil:
			if strings.TrimSpace(line) != "" {
				open.commands = append(open.commands, line)
			}
		case strings.HasPrefix(line, "## "):
			section = strings.TrimPrefix(line, "## ")
			heading = section
		case strings.HasPrefix(line, "#"):
			heading = strings.TrimLeft(line, "# ")
		}
	}
	return all
}

// of returns the blocks of a section.
func of(all []block, section string) []block {
	return slices.DeleteFunc(slices.Clone(all), func(b block) bool { return b.section != section })
}

// hosts names those on which a block is to be run, by its heading.
func (b block) hosts() ([]string, error) {
	words := strings.FieldsFunc(strings.ToLower(b.heading), func(r rune) bool { return r < 'a' || r > 'z' })
	var on []string
	for i, w := range words {
		switch {
		case i == 0 || words[i-1] != "on":
		case w == "both":
			return []string{"alpha", "beta"}, nil
		case w == "alpha", w == "beta":
			on = append(on, w)
		}
	}
	if len(on) != 1 {
		return nil, fmt.Errorf("the heading %q does not say on which host its commands are to be run", b.heading)
	}
	return on, nil
}

// online tells whether commands fetch something from the Internet. The hosts' own
// network has no way there.
func online(commands []string) bool {
	return slices.ContainsFunc(commands, func(c string) bool {
		return strings.Contains(c, "apt-get ") || strings.Contains(c, "curl ") || strings.Contains(c, "git clone ") || strings.Contains(c, "make ")
	})
}

// withoutNBD returns what is typed on a kernel that has no nbd: the disk is attached as a
// socket, and what comes after that is left out.
func withoutNBD(commands []string) (typed, left []string) {
	for i, c := range commands {
		if strings.Contains(c, "attach --device ") {
			return append(slices.Clone(commands[:i]), strings.Replace(c, "--device ", "", 1)), commands[i+1:]
		}
	}
	return commands, nil
}
