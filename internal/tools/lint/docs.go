package main

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// docChecker checks the commands, make targets, tests and links that a Markdown
// document names.
type docChecker struct {
	commands *commandTree
	targets  map[string]bool
	tests    map[string][]string // the directories that have a test of that name
	exists   func(path string) bool
}

var (
	targetLine = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
	codeSpan   = regexp.MustCompile("`([^`]+)`")
	link       = regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
	separator  = regexp.MustCompile(`\s*(?:\|\||&&|[|;]\s|;$|>)\s*`)
	comment    = regexp.MustCompile(`\s#\s.*`)
	assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
	testName   = regexp.MustCompile(`^(?:([a-z][a-z0-9_/]*)\.)?((?:Test|Fuzz|Benchmark)[A-Z0-9]\w*)$`)
)

// indexFile lists what each folder beside it proves.
const indexFile = "integration/README.md"

// checkIndex finds folders of Go files that the index in a file does not link to.
func checkIndex(file string, src []byte, files []string) (found []finding) {
	top := path.Dir(file)
	missing := make(map[string]bool)
	for _, f := range files {
		dir, below := strings.CutPrefix(path.Dir(f), top+"/")
		if below && strings.HasSuffix(f, ".go") && !bytes.Contains(src, []byte("]("+dir+")")) && !missing[dir] {
			missing[dir] = true
			found = append(found, finding{file: file, text: dir + " is missing"})
		}
	}
	return found
}

func makeTargets(makefile []byte) map[string]bool {
	targets := make(map[string]bool)
	for _, m := range targetLine.FindAllSubmatch(makefile, -1) {
		targets[string(m[1])] = true
	}
	return targets
}

func (d *docChecker) check(file string, src []byte) []finding {
	var found []finding
	add := func(line int, texts []string) {
		for _, t := range texts {
			found = append(found, finding{file, line, t})
		}
	}
	fenced := false
	shell := false
	continued, start := "", 0
	for i, raw := range bytes.Split(src, []byte{'\n'}) {
		line, no := string(raw), i+1
		if marker, ok := strings.CutPrefix(strings.TrimSpace(line), "```"); ok {
			fenced = !fenced
			shell = fenced && (marker == "" || marker == "sh" || marker == "bash" || marker == "console" || marker == "shell")
			continued = ""
			continue
		}
		if fenced {
			if !shell {
				continue
			}
			if continued == "" {
				start = no
			}
			if body, ok := strings.CutSuffix(line, "\\"); ok {
				continued += body + " "
				continue
			}
			add(start, d.shellLine(continued+line))
			continued = ""
			continue
		}
		for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
			add(no, d.shellLine(m[1]))
			add(no, d.test(m[1]))
		}
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			if target := m[1]; !strings.Contains(target, ":") && !d.exists(path.Join(path.Dir(file), target)) {
				add(no, []string{fmt.Sprintf("links to %s, which does not exist", target)})
			}
		}
	}
	return found
}

// shellLine checks each simple command of a line.
func (d *docChecker) shellLine(line string) []string {
	var found []string
	for _, simple := range separator.Split(comment.ReplaceAllString(strings.TrimSpace(line), ""), -1) {
		words := stripPrefix(strings.Fields(simple))
		if len(words) < 2 {
			continue
		}
		switch path.Base(words[0]) {
		case "ironwarp":
			if f := d.ironwarp(words[1:]); f != "" {
				found = append(found, f)
			}
		case "make":
			if words[0] == "make" {
				found = append(found, d.make(words[1:])...)
			}
		}
	}
	return found
}

// test checks a name such as TestX, or ipsec.TestX for one in a particular
// directory.
func (d *docChecker) test(span string) []string {
	m := testName.FindStringSubmatch(span)
	if m == nil {
		return nil
	}
	dir, name := m[1], m[2]
	if slices.ContainsFunc(d.tests[name], func(has string) bool {
		return dir == "" || has == dir || strings.HasSuffix(has, "/"+dir)
	}) {
		return nil
	}
	return []string{fmt.Sprintf("names the test %s, which does not exist", span)}
}

// stripPrefix drops a prompt, variable assignments and programs that run
// another one.
func stripPrefix(words []string) []string {
	for len(words) > 0 {
		switch w := words[0]; {
		case w == "$" || w == "#" || w == "sudo" || w == "exec" || w == "time" || assignment.MatchString(w):
			words = words[1:]
		case w == "ip" && len(words) > 4 && words[1] == "netns" && words[2] == "exec":
			words = words[4:]
		default:
			return words
		}
	}
	return words
}

func (d *docChecker) make(words []string) []string {
	var found []string
	for _, w := range words {
		if strings.HasPrefix(w, "-") || assignment.MatchString(w) {
			continue
		}
		if !targetLine.MatchString(w + ":") {
			break // prose, not a target
		}
		if !d.targets[w] {
			found = append(found, fmt.Sprintf("names 'make %s', which the Makefile does not have", w))
		}
	}
	return found
}

// ironwarp follows the words of a command line down the command tree.
func (d *docChecker) ironwarp(words []string) string {
	var at []string
	flags := make(map[string]bool)
	cmd := d.commands.at(nil)
	for i := 0; cmd != nil; i++ {
		for name, takesValue := range cmd.flags {
			flags[name] = takesValue
		}
		for i < len(words) && strings.HasPrefix(words[i], "-") {
			if words[i] == "--" { // the rest is another program's
				return ""
			}
			name, _, inline := strings.Cut(strings.Trim(words[i], "[]"), "=")
			takesValue, ok := flags[name]
			if !ok {
				return fmt.Sprintf("names the flag %s of 'ironwarp %s', which does not exist", name, strings.Join(at, " "))
			}
			if takesValue && !inline {
				i++
			}
			i++
		}
		if i >= len(words) || words[i] == "..." {
			return ""
		}
		if len(cmd.subs) <= 1 { // nothing but help: the rest are arguments, and flags among them
			return d.trailingFlags(at, flags, words[i:])
		}
		for alt := range strings.SplitSeq(words[i], "|") {
			if !cmd.subs[alt] {
				return fmt.Sprintf("names 'ironwarp %s', which does not exist", strings.Join(append(at, alt), " "))
			}
		}
		name, _, _ := strings.Cut(words[i], "|")
		at = append(at, name)
		cmd = d.commands.at(at)
	}
	return ""
}

func (d *docChecker) trailingFlags(at []string, flags map[string]bool, words []string) string {
	for _, w := range words {
		name, _, _ := strings.Cut(strings.Trim(w, "[]"), "=")
		if w == "--" {
			return ""
		}
		if strings.HasPrefix(name, "--") {
			if _, ok := flags[name]; !ok {
				return fmt.Sprintf("names the flag %s of 'ironwarp %s', which does not exist", name, strings.Join(at, " "))
			}
		}
	}
	return ""
}
