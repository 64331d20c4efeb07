package agent

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// answerTime bounds the wait for the answer to a command, of which the slowest itself
// waits up to a minute.
const answerTime = 2 * time.Minute

// Process is a running agent. Commands may be given from several goroutines and are
// carried out one after the other.
type Process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr bytes.Buffer

	// Lock order: Process.command, Process, stream.
	command sync.Mutex             // held from a command to its answer
	payload atomic.Int64           // bytes that follow the answer; noPayload: none
	asked   atomic.Bool            // a command waits for its answer
	unasked atomic.Pointer[string] // what was answered without a command
	answers chan answer
	dead    chan struct{} // closed when the agent has ended

	mu      sync.Mutex // guards the fields below it
	streams map[int]*stream
	lines   []string // the last that were exchanged
}

// keptLines is how many lines of the exchange with an agent are kept.
const keptLines = 40

// Ended reports whether the agent has ended, or has turned out to be none.
func (a *Process) Ended() bool {
	select {
	case <-a.dead:
		return true
	default:
		return false
	}
}

// Lines are the last lines exchanged with the agent.
func (a *Process) Lines() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.lines, "\n")
}

func (a *Process) note(line string) {
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

// Start runs an agent by a command, which may lead to another host. It fails where the process can't be started.
func Start(cmd *exec.Cmd) (*Process, error) {
	a := &Process{cmd: cmd, answers: make(chan answer, 1), dead: make(chan struct{}), streams: make(map[int]*stream)}
	a.cmd.Stderr = &a.stderr
	a.cmd.WaitDelay = time.Second // for what it has left behind
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
func (a *Process) Stop() error {
	a.in.Close()
	t := time.AfterFunc(answerTime, func() { a.cmd.Process.Kill() })
	defer t.Stop()
	<-a.dead
	if err := a.cmd.Wait(); err != nil {
		return fmt.Errorf("the agent: %w: %s", err, strings.TrimSpace(a.stderr.String()))
	}
	return nil
}

func (a *Process) read(r *bufio.Reader) {
	ended := false
	defer func() {
		if !ended { // it is no agent
			_ = a.cmd.Process.Kill()
		}
		close(a.dead)
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, s := range a.streams {
			s.happens(event{kind: "dead"})
		}
	}()
	for {
		slice, err := r.ReadSlice('\n')
		if err != nil {
			ended = err == io.EOF
			return
		}
		line := string(slice)
		words := strings.Fields(line)
		a.note(strings.TrimSpace(line))
		ok := true
		switch want := a.payload.Load(); {
		case len(words) == 0:
		case strings.HasPrefix(line, "+"):
			a.happened(words)
		case words[0] == "no":
			ok = a.answer(answer{err: errors.New(strings.TrimSpace(line[2:]))})
		case words[0] != "ok":
			ok = a.answer(answer{err: fmt.Errorf("it answers %q", strings.TrimSpace(line))})
		case want != noPayload:
			if len(words) != 2 || words[1] != strconv.FormatInt(want, 10) {
				a.answer(answer{err: fmt.Errorf("it answers %q in place of %d bytes", strings.TrimSpace(line), want)})
				return
			}
			b := make([]byte, want)
			if _, err := io.ReadFull(r, b); err != nil {
				return
			}
			ok = a.answer(answer{payload: b})
		default:
			ok = a.answer(answer{words: words[1:]})
		}
		if !ok {
			line = strings.TrimSpace(line)
			a.unasked.Store(&line)
			return
		}
	}
}

// answer passes an answer on, and reports whether somebody waits for one.
func (a *Process) answer(x answer) bool {
	if !a.asked.CompareAndSwap(true, false) {
		return false
	}
	a.answers <- x
	return true
}

// happened passes an event to its stream.
func (a *Process) happened(words []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, conn, err := parseEvent(words)
	if s := a.streams[conn]; s != nil && err == nil && e.kind != "async" {
		s.happens(e)
	}
}

// Do gives a command and returns the words of its answer. It fails with the error that
// the agent answers, and where it has ended or does not answer.
func (a *Process) Do(format string, args ...any) ([]string, error) {
	ans := a.do(fmt.Sprintf(format, args...), nil, noPayload)
	return ans.words, ans.err
}

// noPayload is the length of bytes that do not come.
const noPayload = -1

// do gives a command that bytes follow, and whose answer so many bytes follow.
func (a *Process) do(line string, payload []byte, returns int) answer {
	a.command.Lock()
	defer a.command.Unlock()
	a.payload.Store(int64(returns))
	t := time.AfterFunc(answerTime, func() { a.cmd.Process.Kill() })
	defer t.Stop()
	a.note("> " + line)
	a.asked.Store(true)
	_, err := a.in.Write(append(append([]byte(line), '\n'), payload...))
	var ans answer
	select {
	case ans = <-a.answers:
	case <-a.dead:
		ans.err = errors.Join(errors.New("the agent has died"), err)
		if line := a.unasked.Load(); line != nil {
			ans.err = fmt.Errorf("it is no agent: it says %q, which nobody has asked for", *line)
		}
	}
	if ans.err != nil {
		ans.err = fmt.Errorf("agent: %s: %w", line, ans.err)
	}
	return ans
}

// stream registers the stream that the agent calls conn.
func (a *Process) stream(conn int) *stream {
	s := &stream{changed: make(chan struct{}, 1), silent: make(map[uint64]bool)}
	a.mu.Lock()
	a.streams[conn] = s
	a.mu.Unlock()
	return s
}

func (a *Process) forget(conn int) {
	a.mu.Lock()
	delete(a.streams, conn)
	a.mu.Unlock()
}
