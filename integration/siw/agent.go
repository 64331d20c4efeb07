package siw

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// answerTime bounds the wait for the answer to a command, of which the slowest itself
// waits up to a minute.
const answerTime = 2 * time.Minute

// Agent is a running agent. Commands may be given from several goroutines and are
// carried out one after the other.
type Agent struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr bytes.Buffer

	// Lock order: Agent.command, Agent, stream.
	command sync.Mutex  // held from a command to its answer
	payload atomic.Bool // the answer is followed by bytes
	answers chan answer
	dead    chan struct{} // closed when the agent has ended

	mu      sync.Mutex // guards the fields below it
	streams map[int]*stream
	lines   []string // the last that were exchanged
}

// keptLines is how many lines of the exchange with an agent are kept.
const keptLines = 40

// Lines are the last lines exchanged with the agent.
func (a *Agent) Lines() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.lines, "\n")
}

func (a *Agent) note(line string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.lines) == keptLines {
		a.lines = a.lines[:copy(a.lines, a.lines[1:])]
	}
	a.lines = append(a.lines, line)
}

type answer struct {
	words   []string
	payload []byte
	err     error
}

// Start runs an agent on an RDMA device of a network namespace. It fails where the
// process can't be started.
func Start(path, namespace, device string) (*Agent, error) {
	return start(exec.Command("ip", "netns", "exec", namespace, path, device))
}

func start(cmd *exec.Cmd) (*Agent, error) {
	a := &Agent{cmd: cmd, answers: make(chan answer, 1), dead: make(chan struct{}), streams: make(map[int]*stream)}
	a.cmd.Stderr = &a.stderr
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := a.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	a.in = in
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	go a.read(bufio.NewReaderSize(out, 1<<16))
	return a, nil
}

// Stop ends the agent, whose kernel objects go with it. It fails with the agent's exit
// status and its output; an agent that does not end is killed.
func (a *Agent) Stop() error {
	a.in.Close()
	t := time.AfterFunc(answerTime, func() { a.cmd.Process.Kill() })
	defer t.Stop()
	<-a.dead
	if err := a.cmd.Wait(); err != nil {
		return fmt.Errorf("the agent: %w: %s", err, strings.TrimSpace(a.stderr.String()))
	}
	return nil
}

func (a *Agent) read(r *bufio.Reader) {
	defer func() {
		close(a.dead)
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, s := range a.streams {
			s.happens(event{kind: "dead"})
		}
	}()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		words := strings.Fields(line)
		a.note(strings.TrimSpace(line))
		switch {
		case len(words) == 0:
		case strings.HasPrefix(line, "+"):
			a.happened(words)
		case words[0] == "no":
			a.answers <- answer{err: errors.New(strings.TrimSpace(line[2:]))}
		case a.payload.Load():
			var n int
			fmt.Sscan(words[1], &n)
			b := make([]byte, n)
			if _, err := io.ReadFull(r, b); err != nil {
				return
			}
			a.answers <- answer{payload: b}
		default:
			a.answers <- answer{words: words[1:]}
		}
	}
}

// happened passes an event to its stream.
func (a *Agent) happened(words []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, conn, err := parseEvent(words)
	if s := a.streams[conn]; s != nil && err == nil && e.kind != "async" {
		s.happens(e)
	}
}

// Do gives a command and returns the words of its answer. It fails with the error that
// the agent answers, and where it has ended or does not answer.
func (a *Agent) Do(format string, args ...any) ([]string, error) {
	ans := a.do(fmt.Sprintf(format, args...), nil, false)
	return ans.words, ans.err
}

func (a *Agent) do(line string, payload []byte, returns bool) answer {
	a.command.Lock()
	defer a.command.Unlock()
	a.payload.Store(returns)
	t := time.AfterFunc(answerTime, func() { a.cmd.Process.Kill() })
	defer t.Stop()
	a.note("> " + line)
	_, err := a.in.Write(append(append([]byte(line), '\n'), payload...))
	var ans answer
	select {
	case ans = <-a.answers:
	case <-a.dead:
		ans.err = errors.Join(errors.New("the agent has died"), err)
	}
	if ans.err != nil {
		ans.err = fmt.Errorf("siw: %s: %w", line, ans.err)
	}
	return ans
}

// stream registers the stream that the agent calls conn.
func (a *Agent) stream(conn int) *stream {
	s := &stream{changed: make(chan struct{}, 1), silent: make(map[uint64]bool)}
	a.mu.Lock()
	a.streams[conn] = s
	a.mu.Unlock()
	return s
}

func (a *Agent) forget(conn int) {
	a.mu.Lock()
	delete(a.streams, conn)
	a.mu.Unlock()
}
