package main

import (
	"bytes"
	"strings"
	"testing"
)

// A page of 80 columns gets 80 columns, whatever there is to show.
func TestTablesFitThePage(t *testing.T) {
	long := strings.Repeat("long ", 30)
	for name, rows := range map[string][][]any{
		"short":           {{"beta/docs", "1.0 GiB", "ready", "/run/docs.sock"}},
		"long optional":   {{"beta/docs", "1.0 GiB", "ready", strings.Repeat("/run", 30)}},
		"long words":      {{"beta/docs", "1.0 GiB", long, "/run/docs.sock"}},
		"one long word":   {{strings.Repeat("n", 120), "1.0 GiB", "ready", "/run/docs.sock"}},
		"several of them": {{strings.Repeat("n", 30), "1.0 GiB", strings.Repeat("s", 90), "/run/docs.sock"}},
	} {
		var out bytes.Buffer
		w := &ironwarp{stdout: &out, width: 80}
		s := w.sheet("disk", ">size", "state", "?socket")
		for _, r := range rows {
			s.row(r...)
		}
		s.print()
		for line := range strings.Lines(out.String()) {
			if n := len(strings.TrimRight(line, "\n")); n > 80 {
				t.Errorf("%s: a line of %d columns:\n%s", name, n, out.String())
			}
		}
		shown := strings.Contains(out.String(), "SOCKET")
		if shown != (name == "short") {
			t.Errorf("%s: the optional column is shown: %v\n%s", name, shown, out.String())
		}
		if shown == strings.Contains(out.String(), more) {
			t.Errorf("%s: what is left out has to be seen:\n%s", name, out.String())
		}
	}
}

func TestTablesForProgramsHaveAllColumns(t *testing.T) {
	var out bytes.Buffer
	w := &ironwarp{stdout: &out}
	s := w.sheet("disk", "?socket")
	s.row("beta/docs", strings.Repeat("/run", 60))
	s.print()
	if !strings.Contains(out.String(), strings.Repeat("/run", 60)) {
		t.Error(out.String())
	}
}

func TestFlagsStandAnywhere(t *testing.T) {
	app := (&ironwarp{}).app()
	for in, want := range map[string]string{
		"attach a/b --timeout 3s":               "attach --timeout 3s a/b",
		"attach a/b --timeout=3s -q":            "attach --timeout=3s -q a/b",
		"--json attach a/b --quiet":             "--json attach --quiet a/b",
		"--socket s attach a/b":                 "--socket s attach a/b",
		"peer add beta 192.0.2.2 --psk-file -":  "peer add --psk-file - beta 192.0.2.2",
		"peer add beta --port 9 192.0.2.2":      "peer add --port 9 beta 192.0.2.2",
		"attach a/b -- --timeout":               "attach -- a/b --timeout",
		"peer frobnicate --x":                   "peer frobnicate --x",
		"attach a/b --nope c":                   "attach --nope a/b c",
		"attach a/b --timeout":                  "attach --timeout",
		"export add docs /srv/x --allow a --ro": "export add --allow a --ro docs /srv/x",
	} {
		got := strings.Join(flagsFirst(app, append([]string{"ironwarp"}, strings.Fields(in)...)), " ")
		if got != "ironwarp "+want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
