package conf

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/internal/spelling"
)

// Parse reads the text of fabric.conf; file names it in errors. It reads no file, so the keys are those
// of no file. It fails with each [Error], in the order of the lines.
func Parse(file string, text []byte) (*Config, error) {
	p := parser{file: file, config: Default(), set: map[string]int{}}
	p.config.File = file
	if len(text) > maxFile {
		p.fail(1, "more than %d bytes, so this is some other file", maxFile)
		return nil, errors.Join(p.errs...)
	}
	no := 0
	for line := range bytes.Lines(text) {
		no++
		p.line(no, string(bytes.TrimRight(line, "\r\n")))
	}
	if name, fault := p.config.settle(func(name string) int { return p.set[name] }); fault != "" {
		p.fail(p.set[name], "%s", fault)
	}
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	return p.config, nil
}

type parser struct {
	file   string
	config *Config
	set    map[string]int // the line of each option that is set
	errs   []error
}

func (p *parser) fail(line int, format string, args ...any) {
	switch {
	case len(p.errs) < maxErrors:
		p.errs = append(p.errs, &Error{p.file, line, fmt.Sprintf(format, args...)})
	case len(p.errs) == maxErrors:
		p.errs = append(p.errs, &Error{p.file, line, "and more faults from here on"})
	}
}

const space = " \t\v\f"

func (p *parser) line(no int, line string) {
	if len(line) > maxLine {
		p.fail(no, "the line has %d bytes, at most %d are possible", len(line), maxLine)
		return
	}
	line, _, _ = strings.Cut(line, "#")
	line = strings.Trim(line, space)
	if line == "" {
		return
	}
	name, value := line, ""
	if i := strings.IndexAny(line, space); i >= 0 {
		name, value = line[:i], unquote(strings.Trim(line[i:], space))
	}
	o := find(name)
	if o == nil {
		p.fail(no, "%s", unknown(name))
		return
	}
	if at, again := p.set[o.name]; again {
		p.fail(no, "%s is set again, after line %d", name, at)
		return
	}
	p.set[o.name] = no
	switch _, isKey := keyNames[KeyName(o.name)]; {
	case value == "":
		p.fail(no, "%s has no value; it takes %s", name, o.takes)
	case o.set(p.config, value):
	case isKey:
		// The value is not shown: it may well be the key.
		p.fail(no, "%s takes %s. A key does not stand in this file, which others may read: write it to %s (umask 077; echo 0x... > %[3]s) and put that path here",
			name, o.takes, keyPath(p.file, KeyName(o.name)))
	default:
		p.fail(no, "%s takes %s", name, o.takes)
	}
}

// unquote removes one pair of quotes.
func unquote(s string) string {
	if n := len(s); n >= 2 && s[0] == s[n-1] && (s[0] == '"' || s[0] == '\'') {
		return s[1 : n-1]
	}
	return s
}

func find(name string) *option {
	for i := range options {
		if o := &options[i]; name == o.name || name == o.alias {
			return o
		}
	}
	return nil
}

// unknown describes a name that is not known, without what is attached to it, which may be a key.
func unknown(name string) string {
	word := name
	if i := strings.IndexFunc(name, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }); i >= 0 {
		word = name[:i]
	}
	switch {
	case word == "":
		return "a line begins with the name of an option"
	case word != name && find(word) != nil:
		return fmt.Sprintf("a space separates %s from its value", word)
	}
	var names []string
	for _, o := range options {
		names = append(names, o.name)
		if o.alias != "" {
			names = append(names, o.alias)
		}
	}
	text := fmt.Sprintf("unknown option %q", printable.Cut(word, maxShown))
	if near := spelling.Closest(strings.ToLower(printable.Cut(word, maxShown)), names); near != "" {
		return text + fmt.Sprintf("; did you mean %s?", near)
	}
	return text + "; docs/fabric.md has all"
}
