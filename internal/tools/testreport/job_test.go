package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSlowJobsBeginFirst(t *testing.T) {
	jobs := []job{{pkg: "m/integration/attack"}, {pkg: "m/integration/peers", part: "1/2"}, {pkg: "m/integration/peers", part: "2/2"}, {pkg: "m/verbs"}, {pkg: "m/integration/chaos"}, {pkg: "m/integration/chaos/x"}}
	got := slowFirst(jobs)
	for i, want := range []string{"m/integration/chaos", "m/integration/peers 1/2", "m/integration/peers 2/2", "m/verbs", "m/integration/attack", "m/integration/chaos/x"} {
		if name := got[i].pkg + map[bool]string{true: " "}[got[i].part != ""] + got[i].part; name != want {
			t.Errorf("job %d is %s, want %s", i, name, want)
		}
	}
	for _, name := range slow {
		if _, err := os.Stat(filepath.Join("..", "..", "..", name)); err != nil {
			t.Errorf("a slow package is gone: %v", err)
		}
	}
}
