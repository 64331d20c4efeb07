package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// shells are driven to complete words, and to run what that has made of them. changed is
// what would let a name be executed in their completion.
var shells = []struct {
	name, drive string
	args        []string
	file        string
	changed     [2]string
}{
	{"bash", `
. ./completion.bash
for peer in beta delta epsilon gamma; do
  COMP_WORDS=(ironwarp attach $peer/) COMP_CWORD=2 COMPREPLY=()
  _ironwarp
  for word in "${COMPREPLY[@]}"; do eval "ironwarp attach $word"; done
done
`, []string{"--norc", "-c"}, "completion.bash", [2]string{`"$(printf %q "$candidate")"`, `"$candidate"`}},
	// On a terminal, as what is put on the line is the line editor's.
	{"zsh", `
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1= ; autoload -U compinit; compinit -u -D; . ./completion.zsh'
for peer in beta delta epsilon gamma; do zpty -n -w z $'ironwarp attach '$peer$'/\t\n'; done
zpty -w z exit
while zpty -r z line; do print -rn -- $line; done
`, []string{"-f", "-c"}, "completion.zsh", [2]string{"_describe 'values' candidates", "_describe 'values' candidates -Q"}},
	{"fish", `
source completion.fish
for peer in beta delta epsilon gamma
  for word in (complete -C --escape "ironwarp attach $peer/")
    eval ironwarp attach $word
  end
end
`, []string{"--no-config", "-c"}, "completion.fish", [2]string{"IRONWARP_COMPLETE=$cur $words --generate-bash-completion 2>/dev/null",
		"for w in (IRONWARP_COMPLETE=$cur $words --generate-bash-completion); eval echo $w; end"}},
}

// What completes a word may be of a peer's choice. A shell that is asked to complete it
// executes none of it, and neither does one to which it was completed.
func TestCompletionExecutesNothing(t *testing.T) {
	for _, sh := range shells {
		t.Run(sh.name, func(t *testing.T) {
			if _, err := exec.LookPath(sh.name); err != nil {
				t.Skipf("%s is not installed", sh.name)
			}
			text, err := os.ReadFile(sh.file)
			if err != nil {
				t.Fatal(err)
			}
			called, executed := complete(t, sh.name, append(sh.args, sh.drive), sh.file, string(text))
			if want := "attach beta/$(touch executed)\nattach delta/`touch executed`\nattach epsilon/(touch executed)\nattach gamma/disk\n"; called != want || executed {
				t.Errorf("executed %v; called to %q, want %q", executed, called, want)
			}
			if changed := strings.Replace(string(text), sh.changed[0], sh.changed[1], 1); changed == string(text) {
				t.Error("the control is about nothing that the completion does")
			} else if called, executed = complete(t, sh.name, append(sh.args, sh.drive), sh.file, changed); !executed {
				t.Errorf("the control: not executed; called to %q", called)
			}
		})
	}
}

// complete runs a shell, and returns what it called the program to, and whether it executed
// a name that the program gave it.
func complete(t *testing.T, shell string, args []string, file, text string) (called string, executed bool) {
	t.Helper()
	dir := t.TempDir()
	const program = `#!/bin/sh
case "$*" in
*--generate-bash-completion) printf '%s\n' 'beta/$(touch executed)' 'delta/` + "`touch executed`" + `' 'epsilon/(touch executed)' 'gamma/disk' | grep "^$IRONWARP_COMPLETE" ;;
*) printf '%s\n' "$*" >>called ;;
esac
`
	for name, content := range map[string]string{"ironwarp": program, file: text} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), shell, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "TERM=vt100")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
	b, err := os.ReadFile(filepath.Join(dir, "called"))
	if err != nil {
		t.Logf("the program was not called: %v", err)
	}
	_, err = os.Lstat(filepath.Join(dir, "executed"))
	return string(b), err == nil
}
