package lab

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// CaptureOptions says what Capture records; the zero value is every packet on
// the wire, its first 192 bytes.
type CaptureOptions struct {
	File    string // default: a file in the host's directory
	Filter  string // a tcpdump expression
	SnapLen int    // bytes kept of each packet, default 192: enough to classify it
	Wire    int    // which of the host's wires, from 0
}

// Capture is a running tcpdump on the wire of a host, at the switch.
type Capture struct {
	host *Host
	wire int
	path string
	cmd  *exec.Cmd

	mu     sync.Mutex
	stderr bytes.Buffer
	read   chan struct{} // closed at the end of standard error
	once   sync.Once
	counts Counts
	err    error
}

// Capture starts tcpdump on the host's wire, both directions, and returns when it
// listens: no later packet is missed.
func (h *Host) Capture(ctx context.Context, o CaptureOptions) (*Capture, error) {
	h.mu.Lock()
	n := len(h.captures)
	h.mu.Unlock()
	if o.File == "" {
		o.File = filepath.Join(h.dir, fmt.Sprintf("capture%d.pcap", n))
	}
	if o.SnapLen == 0 {
		o.SnapLen = 192
	}
	// -Z root: tcpdump may not write into the lab's directory as another user.
	argv := []string{"netns", "exec", h.lab.bridge, "tcpdump", "-i", h.switchPort(o.Wire), "-n", "-U", "--immediate-mode",
		"-B", strconv.Itoa(captureBufferKiB), "-Z", "root", "-s", strconv.Itoa(o.SnapLen), "-w", o.File}
	if o.Filter != "" {
		argv = append(argv, fmt.Sprintf("(%s) or ether proto %#x", o.Filter, markerType))
	}
	c := &Capture{host: h, wire: o.Wire, path: o.File, cmd: exec.Command("ip", argv...), read: make(chan struct{})}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("capture on %s: %w", h.name, err)
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("capture on %s: %w", h.name, err)
	}
	listening := make(chan struct{})
	go func() {
		defer close(c.read)
		ready := false
		for s := bufio.NewScanner(pipe); s.Scan(); {
			c.mu.Lock()
			c.stderr.WriteString(s.Text() + "\n")
			c.mu.Unlock()
			if !ready && strings.Contains(s.Text(), "listening on") {
				ready = true
				close(listening)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, captureTimeout)
	defer cancel()
	select {
	case <-listening:
	case <-c.read:
		err = errors.New("tcpdump ended at once")
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		_ = c.cmd.Process.Kill()
		<-c.read
		_ = c.cmd.Wait()
		return nil, fmt.Errorf("capture on %s: %w: %s", h.name, err, c.messages())
	}
	h.mu.Lock()
	h.captures = append(h.captures, c)
	h.mu.Unlock()
	return c, nil
}

// Path is the capture's file.
func (c *Capture) Path() string { return c.path }

// Count counts what has crossed the wire so far; the capture goes on.
func (c *Capture) Count() (Counts, error) {
	c.catchUp()
	return CountFile(c.path)
}

// catchUp returns when the file has every packet that crossed the wire before:
// a frame with a random mark is sent after them, and awaited in the file.
// Without it tcpdump, once told to end, would drop what it has not read yet.
func (c *Capture) catchUp() {
	var mark [16]byte
	rand.Read(mark[:])
	f, err := os.Open(c.path)
	if err != nil {
		return
	}
	defer f.Close()
	from := int64(0)
	if st, err := f.Stat(); err == nil {
		from = st.Size()
	}
	if err := c.host.sendMark(c.wire, mark[:]); err != nil {
		return // the wire is cut: nothing is on its way
	}
	deadline := time.Now().Add(captureTimeout)
	for buf := []byte(nil); time.Now().Before(deadline); {
		more, err := io.ReadAll(io.NewSectionReader(f, from, 1<<62))
		if err != nil {
			return
		}
		from += int64(len(more))
		if buf = append(buf, more...); bytes.Contains(buf, mark[:]) {
			return
		}
		buf = buf[max(0, len(buf)-len(mark)):]
		time.Sleep(time.Millisecond)
	}
}

// sendMark puts a frame of an experimental type (IEEE 802, local use) on the
// wire. Counts leave such frames out.
func (h *Host) sendMark(wire int, mark []byte) error {
	return h.Do(func() error {
		dev, err := net.InterfaceByName(wireDev(wire))
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		frame := append(append([]byte{}, dev.HardwareAddr...), dev.HardwareAddr...)
		frame = append(frame, markerType>>8, markerType&0xff)
		frame = append(frame, mark...)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index, Halen: 6})
	})
}

// Stop ends the capture and counts it. Later calls return the same.
func (c *Capture) Stop() (Counts, error) {
	c.once.Do(func() {
		c.catchUp()
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-c.read:
		case <-time.After(captureTimeout):
			_ = c.cmd.Process.Kill()
			<-c.read
		}
		_ = c.cmd.Wait()
		if c.counts, c.err = CountFile(c.path); c.err != nil {
			return
		}
		dropped, ok := parseDropped(c.messages())
		if !ok {
			c.err = fmt.Errorf("capture on %s: tcpdump did not say how many packets it missed: %s", c.host.name, c.messages())
		}
		c.counts.Dropped = dropped
	})
	return c.counts, c.err
}

func (c *Capture) messages() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.TrimSpace(c.stderr.String())
}

func (h *Host) stopCaptures() {
	h.mu.Lock()
	all := h.captures
	h.captures = nil
	h.mu.Unlock()
	for _, c := range all {
		_, _ = c.Stop()
	}
}

var droppedLine = regexp.MustCompile(`(\d+) packets? dropped by (kernel|interface)`)

func parseDropped(s string) (n int, ok bool) {
	for _, m := range droppedLine.FindAllStringSubmatch(s, -1) {
		d, err := strconv.Atoi(m[1])
		if err != nil {
			return 0, false
		}
		n, ok = n+d, true
	}
	return n, ok
}

// Remove deletes the file of a stopped capture.
func (c *Capture) Remove() error { return os.Remove(c.path) }

const (
	captureTimeout   = 15 * time.Second
	captureBufferKiB = 32 << 10
	markerType       = 0x88b5
)
