// Package howlong reports at the start of a long run how long the last one took on this
// machine.
package howlong

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// taken is how long a run took, and when that was.
type taken struct {
	Seconds float64   `json:"seconds"`
	Ended   time.Time `json:"ended"`
}

// Run is one run.
type Run struct {
	file, what string
	began      time.Time
}

// Begin writes to w how long the run called what will take: as long as the last one, which
// file has recorded, otherwise first, which is 0 if that is not known.
func Begin(w io.Writer, file, what string, first time.Duration) *Run {
	switch last, ok := load(file)[what]; {
	case ok:
		fmt.Fprintf(w, "%s took %s here the last time, on %s\n", what, text(last.Seconds), last.Ended.Format(time.DateOnly))
	case first > 0:
		fmt.Fprintf(w, "%s takes some %s on a machine with two processors; the next run will report what this one took here\n", what, text(first.Seconds()))
	default:
		fmt.Fprintf(w, "%s has never finished here; the next run will report how long this one took\n", what)
	}
	return &Run{file, what, time.Now()}
}

// End records how long the run took. It is for a run that came to its end, whatever it
// found. It fails if the file cannot be written.
func (r *Run) End() error {
	all := load(r.file)
	all[r.what] = taken{time.Since(r.began).Seconds(), time.Now()}
	data, err := json.MarshalIndent(all, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(r.file), 0o755)
	}
	if err == nil {
		err = os.WriteFile(r.file, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("record how long it took: %w", err)
	}
	return nil
}

// load reads what is known; a file that cannot be read counts as empty.
func load(file string) map[string]taken {
	all := map[string]taken{}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) || all == nil {
		return map[string]taken{}
	}
	return all
}

func text(seconds float64) string {
	if seconds < 100 {
		return fmt.Sprintf("%.0f seconds", seconds)
	}
	return fmt.Sprintf("%.0f minutes", seconds/60)
}
