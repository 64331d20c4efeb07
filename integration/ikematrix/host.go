package ikematrix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// patience bounds a step of a row. An emulated machine takes seconds for its first SA,
// for it loads the algorithms.
const patience = 30 * time.Second

// host is a host of the lab with its Manager.
type host struct {
	*lab.Host
	m     *ipsec.Manager
	ended chan error
	log   *logLines
}

func startHost(lh *lab.Host) (*host, error) {
	h := &host{Host: lh, ended: make(chan error, 1), log: &logLines{}}
	var err error
	h.m, err = ipsec.New(ipsec.Config{Socket: lh.ViciSocket(), NetNS: lh.NetNS(), InitiateTimeout: patience, CallTimeout: patience,
		Logger: slog.New(slog.NewTextHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})).With("host", lh.Name())})
	if err != nil {
		return nil, err
	}
	go func() { h.ended <- h.m.Run(context.Background()) }()
	return h, until("the manager of "+lh.Name()+" talks to strongSwan", func() bool { return h.m.DaemonStatus().Connected })
}

func (h *host) stop() error { return errors.Join(h.m.Close(), <-h.ended) }

func (h *host) at(c *Case) netip.Addr {
	if c.Network == ipv6 {
		return h.Addr6()
	}
	return h.Addr()
}

// carrying is a child and the IKE SA that it belongs to.
type carrying struct {
	sa    charon.SA
	child charon.Child
}

// children returns the children of that name once one of them is installed. When both
// hosts have brought one up at the same time there are two for a moment, or, with
// IKEv1, one that counts as rekeyed.
func (h *host) children(ctx context.Context, name string) (all []carrying, err error) {
	waited := until(h.Name()+" has a child "+name+" that is installed", func() bool {
		var sas []charon.SA
		if sas, err = h.m.SAs(ctx); err != nil {
			return true
		}
		all = nil
		installed := false
		for _, sa := range sas {
			for _, c := range sa.Children {
				if c.Name == name {
					all = append(all, carrying{sa, c})
					installed = installed || c.IsInstalled()
				}
			}
		}
		return installed
	})
	return all, errors.Join(err, waited)
}

// sockets counts the host's TCP sockets of a port that may still send: all but
// listening ones and those in TIME-WAIT.
func (h *host) sockets(port uint16) (n int, err error) {
	const listen, timeWait = "0A", "06"
	err = h.Do(func() error {
		for _, file := range []string{"tcp", "tcp6"} {
			b, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(b)) {
				f := strings.Fields(line)
				if len(f) < 4 || f[3] == listen || f[3] == timeWait {
					continue
				}
				for _, end := range f[1:3] {
					_, hex, _ := strings.Cut(end, ":")
					if p, err := strconv.ParseUint(hex, 16, 16); err == nil && uint16(p) == port {
						n++
						break
					}
				}
			}
		}
		return nil
	})
	return n, err
}

// until polls until a condition holds.
func until(what string, f func() bool) error {
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline:
			return fmt.Errorf("not within %v: %s", patience, what)
		case <-tick.C:
		}
	}
	return nil
}

// charonSays is what strongSwan has logged since a mark.
type charonSays struct {
	h    *host
	from int64
}

func (h *host) listen() charonSays {
	s := charonSays{h: h}
	if st, err := os.Stat(h.CharonLog()); err == nil {
		s.from = st.Size()
	}
	return s
}

func (s charonSays) lines() []string {
	f, err := os.Open(s.h.CharonLog())
	if err != nil {
		return nil
	}
	defer f.Close()
	b, _ := io.ReadAll(io.NewSectionReader(f, s.from, 1<<20))
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// logLines keeps a Manager's log for a row that goes wrong.
type logLines struct {
	mu    sync.Mutex // guards the fields below it
	lines []string
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimSpace(string(b)))
	return len(b), nil
}

// take returns the lines since the last call.
func (l *logLines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

// logTail logs the last lines of one source, without strongSwan's lists of settings.
func logTail(t testing.TB, who string, lines []string) {
	const most = 40
	lines = slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return strings.Contains(l, "[CFG]  ") || strings.Contains(l, "[CFG] vici client") })
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	t.Logf("%s:\n%s", who, strings.Join(lines, "\n"))
}
