package lab

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// CaptureOptions says what Capture looks at and what it permits; the zero value looks
// at every packet and permits only ESP, IKE and what is harmless.
type CaptureOptions struct {
	File    string // keeps the packets, if it is set
	Filter  string // a tcpdump expression
	SnapLen int    // bytes looked at of each packet; default: all that the wire carries in one piece
	Wire    int    // which of the host's wires, from 0

	// Allow names further kinds that the test itself sends outside ESP, as Kind.What has
	// them: PortKind(transport.ProtoTCP, 7472). They must not contain the canary.
	Allow []string
	// NullESP says that ESP does not encrypt here: the canary has to be readable in it,
	// and nowhere else.
	NullESP bool
	// Unjudged, if set, says why everything is permitted, as in a control run. The test
	// looks at the counts itself.
	Unjudged string
}

// Capture is a running tcpdump on the wire of a host, at the switch. All bytes of each
// packet are judged as it comes.
type Capture struct {
	host *Host
	o    CaptureOptions
	cmd  *exec.Cmd
	file *os.File

	heard chan struct{} // closed at the end of standard error
	read  chan struct{} // closed at the end of the packets

	mu      sync.Mutex // guards the fields below it
	stderr  bytes.Buffer
	counts  Counts
	err     error             // of reading the packets
	marks   map[mark]struct{} // that have arrived
	arrived chan struct{}     // closed and replaced when a mark has arrived

	once sync.Once
	end  error
}

// mark is what one of catchUp's frames carries.
type mark [16]byte

// Capture starts tcpdump on the host's wire, both directions, and returns when it
// listens: no later packet is missed. It fails where tcpdump does not run or listen.
func (h *Host) Capture(ctx context.Context, o CaptureOptions) (*Capture, error) {
	if o.SnapLen == 0 {
		o.SnapLen = h.lab.cfg.MTU + 64 // Ethernet, tags; more only where the kernel joins segments
	}
	c := &Capture{host: h, o: o, heard: make(chan struct{}), read: make(chan struct{}),
		counts: newCounts(h.lab.canary), marks: map[mark]struct{}{}, arrived: make(chan struct{})}
	if err := c.start(ctx); err != nil {
		return nil, fmt.Errorf("capture on %s: %w", h.name, err)
	}
	h.mu.Lock()
	h.captures = append(h.captures, c)
	h.mu.Unlock()
	return c, nil
}

func (c *Capture) start(ctx context.Context) (err error) {
	// -Z root: tcpdump may not write into the lab's directory as another user.
	argv := []string{"netns", "exec", c.host.lab.bridge, "tcpdump", "-i", c.host.switchPort(c.o.Wire), "-n", "-U", "--immediate-mode",
		"-B", strconv.Itoa(captureBuffer()), "-Z", "root", "-s", strconv.Itoa(c.o.SnapLen), "-w", "-"}
	if c.o.Filter != "" {
		argv = append(argv, fmt.Sprintf("(%s) or ether proto %#x", c.o.Filter, typeMark))
	}
	c.cmd = exec.Command("ip", argv...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	said, err := c.cmd.StderrPipe()
	if err != nil {
		return err
	}
	packets, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirs.Close()
	_, _ = unix.FcntlInt(packets.Fd(), unix.F_SETPIPE_SZ, 1<<20) // or as large as it is
	c.cmd.Stdout = theirs
	var from io.Reader = packets
	if c.o.File != "" {
		if c.file, err = os.Create(c.o.File); err != nil {
			return errors.Join(err, packets.Close())
		}
		from = io.TeeReader(packets, c.file)
	}
	if err := c.cmd.Start(); err != nil {
		return errors.Join(err, packets.Close(), c.closeFile())
	}
	listening := make(chan struct{})
	go c.listen(said, listening)
	go func() {
		defer close(c.read)
		defer packets.Close()
		err := readPcap(from, c.take)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = errors.Join(err, c.closeFile())
	}()
	ctx, cancel := context.WithTimeout(ctx, captureTimeout)
	defer cancel()
	select {
	case <-listening:
		return nil
	case <-c.heard:
		err = errors.New("tcpdump ended at once")
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = c.cmd.Process.Kill()
	<-c.heard
	<-c.read
	_ = c.cmd.Wait()
	return fmt.Errorf("%w: %s", err, c.messages())
}

func (c *Capture) closeFile() error {
	if c.file == nil {
		return nil
	}
	return c.file.Close()
}

// listen keeps tcpdump's standard error.
func (c *Capture) listen(said io.Reader, listening chan struct{}) {
	defer close(c.heard)
	ready := false
	for s := bufio.NewScanner(said); s.Scan(); {
		c.mu.Lock()
		c.stderr.WriteString(s.Text() + "\n")
		c.mu.Unlock()
		if !ready && strings.Contains(s.Text(), "listening on") {
			ready = true
			close(listening)
		}
	}
}

// take counts a packet, or notes that a mark has come.
func (c *Capture) take(frame []byte, onWire int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(frame) >= 14+len(mark{}) && binary.BigEndian.Uint16(frame[12:]) == typeMark {
		c.marks[mark(frame[14:])] = struct{}{}
		close(c.arrived)
		c.arrived = make(chan struct{})
		return
	}
	c.counts.add(frame, onWire)
}

// Path is the capture's file.
func (c *Capture) Path() string { return c.o.File }

// Count counts what has crossed the wire so far; the capture goes on. It fails where
// tcpdump has ended, or a packet could not be read.
func (c *Capture) Count() (Counts, error) {
	err := c.catchUp()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts.clone(), errors.Join(err, c.err)
}

// catchUp returns when every packet that crossed the wire before is counted: it sends a
// frame with a random mark after them, and waits for it. Without that tcpdump, once
// asked to end, would drop what it has not read yet.
func (c *Capture) catchUp() error {
	var m mark
	rand.Read(m[:])
	if err := c.host.sendFrame(c.o.Wire, typeMark, m[:]); err != nil {
		return c.settle() // the wire is cut: nothing more is on its way
	}
	late := time.After(captureTimeout)
	for {
		c.mu.Lock()
		_, come := c.marks[m]
		arrived := c.arrived
		c.mu.Unlock()
		if come {
			return nil
		}
		select {
		case <-arrived:
		case <-c.read:
			return fmt.Errorf("the capture on %s ended early: %s", c.host.name, c.messages())
		case <-late:
			return fmt.Errorf("the capture on %s is more than %v behind", c.host.name, captureTimeout)
		}
	}
}

// settle returns when no more packets come.
func (c *Capture) settle() error {
	last := -1
	for range int(captureTimeout / quiet) {
		c.mu.Lock()
		n := c.counts.Packets
		c.mu.Unlock()
		if n == last {
			return nil
		}
		last = n
		time.Sleep(quiet)
	}
	return fmt.Errorf("the wire of %s is cut, and packets still come", c.host.name)
}

// sendFrame puts a frame of a type on the wire, addressed to nobody else.
func (h *Host) sendFrame(wire int, kind uint16, payload []byte) error {
	var self net.HardwareAddr
	if err := h.Do(func() error {
		dev, err := net.InterfaceByName(wireDev(wire))
		if err == nil {
			self = dev.HardwareAddr
		}
		return err
	}); err != nil {
		return err
	}
	frame := binary.BigEndian.AppendUint16(slices.Concat(self, self), kind)
	return h.transmit(wire, append(frame, payload...))
}

// transmit puts a frame on the wire.
func (h *Host) transmit(wire int, frame []byte) error {
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
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index, Halen: 6})
	})
}

// Stop ends the capture and returns its counts. Later calls return the same. An error
// means that the counts are incomplete; Faults returns what is wrong with the packets.
//
// unlocked: nobody counts any more when it looks.
func (c *Capture) Stop() (Counts, error) {
	c.once.Do(func() {
		err := c.catchUp()
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-c.heard:
		case <-time.After(captureTimeout):
			_ = c.cmd.Process.Kill()
			<-c.heard
		}
		<-c.read
		_ = c.cmd.Wait()
		dropped, ok := parseDropped(c.messages())
		if !ok {
			err = errors.Join(err, fmt.Errorf("capture on %s: tcpdump did not say how many packets it missed: %s", c.host.name, c.messages()))
		}
		c.counts.Dropped = dropped
		c.end = errors.Join(err, c.err)
	})
	return c.counts.clone(), c.end
}

// Faults returns what a stopped capture has that it must not have. The captures of a
// lab that Start has made are always judged at its end.
func (c *Capture) Faults() (all []string) {
	k, err := c.Stop()
	if err != nil {
		all = append(all, err.Error())
	}
	if c.o.Unjudged == "" {
		all = append(all, k.Faults(c.o)...)
	}
	return all
}

// Faults judges counts by what a capture's options permit.
func (c Counts) Faults(o CaptureOptions) (all []string) {
	if c.Dropped > 0 {
		all = append(all, fmt.Sprintf("the capture missed %d packets and proves nothing", c.Dropped))
	}
	switch {
	case o.NullESP && c.Readable() == 0:
		all = append(all, "ESP does not encrypt here, and the canary is not to be read in it: the search for it proves nothing")
	case !o.NullESP && c.Readable() > 0:
		all = append(all, fmt.Sprintf("%d packets of ESP have the canary: it is not encrypted", c.Readable()))
	}
	if leaked := c.Leaked(); leaked != "" {
		all = append(all, "packets on the wire have the canary: "+leaked)
	}
	if len(c.Cut) > 0 {
		all = append(all, "packets on the wire are longer than what was looked at, and may have the canary behind that: "+list(c.Cut))
	}
	if unknown := c.Unknown(o.Allow...); unknown != "" {
		all = append(all, "packets on the wire that nobody expects: "+unknown)
	}
	return all
}

func (c *Capture) messages() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.TrimSpace(c.stderr.String())
}

// stopCaptures ends the host's captures and returns what is wrong with them.
func (h *Host) stopCaptures() (faults []string) {
	h.mu.Lock()
	all := h.captures
	h.captures = nil
	h.mu.Unlock()
	for i, c := range all {
		for _, fault := range c.Faults() {
			faults = append(faults, fmt.Sprintf("capture %d on %s, wire %d: %s", i+1, h.name, c.o.Wire, fault))
		}
	}
	return faults
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

const (
	captureTimeout = 2 * time.Minute // a busy machine is no failure
	quiet          = 50 * time.Millisecond
	// What packets wait in, in KiB, while tcpdump or who judges them stands still: tens of thousands may come in a second.
	minCaptureBuffer = 64 << 10
	maxCaptureBuffer = 256 << 10
)

// captureBuffer is as large as this machine, which has several captures at a time, can afford.
func captureBuffer() (kib int) {
	b, _ := os.ReadFile("/proc/meminfo") // without it: the least
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemAvailable:" {
			kib, _ = strconv.Atoi(f[1])
		}
	}
	return min(max(kib/64, minCaptureBuffer), maxCaptureBuffer)
}
