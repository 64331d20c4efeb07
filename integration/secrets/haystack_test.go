package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// haystack keeps what hosts have written, answered and run, by kind of place.
type haystack struct {
	mu    sync.Mutex
	kinds map[string]map[string][][]byte // kind, place, contents
	seen  map[string]bool
}

func newHaystack() *haystack {
	return &haystack{kinds: map[string]map[string][][]byte{}, seen: map[string]bool{}}
}

// add keeps some content of a place, once.
func (h *haystack) add(kind, place string, content []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := kind + "\x00" + place + "\x00" + string(content)
	if len(content) == 0 || h.seen[id] {
		return
	}
	h.seen[id] = true
	if h.kinds[kind] == nil {
		h.kinds[kind] = map[string][][]byte{}
	}
	h.kinds[kind][place] = append(h.kinds[kind][place], bytes.Clone(content))
}

// find returns the places that have one of the needles, by kind.
func (h *haystack) find(needles []needle) map[string][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := map[string][]string{}
	for kind, places := range h.kinds {
		for place, contents := range places {
			for _, n := range needles {
				if slices.ContainsFunc(contents, func(c []byte) bool { return bytes.Contains(c, n.b) }) {
					found[kind] = append(found[kind], place+" has "+n.what)
					break
				}
			}
		}
	}
	return found
}

func (h *haystack) holds(place string, needles []needle) bool {
	for _, places := range h.find(needles) {
		if slices.ContainsFunc(places, func(p string) bool { return strings.HasPrefix(p, place+" has ") }) {
			return true
		}
	}
	return false
}

func (h *haystack) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for kind, places := range h.kinds {
		size := 0
		for _, contents := range places {
			for _, c := range contents {
				size += len(c)
			}
		}
		lines = append(lines, fmt.Sprintf("%s: %d places, %d bytes", kind, len(places), size))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// walk keeps every file below dir, except those of the secrets themselves.
func (h *haystack) walk(dir string, except func(path string) bool) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was removed meanwhile
			return nil
		case err != nil || !e.Type().IsRegular() || except(path):
			return err
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		data, err := io.ReadAll(io.LimitReader(f, maxFile))
		if err != nil {
			return err
		}
		kind := "files"
		switch filepath.Base(path) {
		case "ironwarp.log":
			kind = "log of the daemon"
		case "charon.log", "charon.out":
			kind = "log of strongSwan"
		}
		h.add(kind, path, data)
		return nil
	})
}

// maxFile is how much of one file is kept, in bytes; disk images are sparse.
const maxFile = 8 << 20

// processes keeps the command lines and environments of all processes.
func (h *haystack) processes() {
	pids, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range pids {
		for file, kind := range map[string]string{"cmdline": "command lines", "environ": "environments"} {
			// A process that has ended has nothing to show.
			if data, err := os.ReadFile(filepath.Join(p, file)); err == nil {
				h.add(kind, filepath.Base(p), data)
			}
		}
	}
}

// lookEvery is how often the processes are looked at.
const lookEvery = 20 * time.Millisecond

// watchProcesses looks at the processes repeatedly until ctx ends.
func (h *haystack) watchProcesses(ctx context.Context) {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		h.processes()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// onRead calls look at each read: then the process is running that reads a secret from
// its standard input.
type onRead struct {
	io.Reader
	look func()
}

func (r onRead) Read(p []byte) (int, error) {
	r.look()
	return r.Reader.Read(p)
}
