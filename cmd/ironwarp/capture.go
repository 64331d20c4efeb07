package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) captureCommand() *cli.Command {
	return &cli.Command{
		Name: "capture", Usage: "what RDMA streams carry, in clear, as a file for Wireshark while the wire has ESP",
		Description: "Captures the streams of the daemon's services (disks, exports, iSER, ping, the fabric) as packets of TCP or SCTP, until Ctrl-C. " +
			"Headers of MPA, DDP and RDMAP are captured, RDMA Read Requests, Terminates and Immediate Data; --payload adds what the services send. " +
			"Streams of programs under `ironwarp run` are in those processes, and are not captured. Root alone may capture; `ironwarp status` and " +
			"`ironwarp security audit` show the captures that run.",
		Flags: remote(
			&cli.StringFlag{Name: "peer", Usage: "of streams with `PEER` alone"},
			&cli.BoolFlag{Name: "payload", Usage: "with all that streams carry, such as what is on disks"},
			&cli.StringFlag{Name: "write", Aliases: []string{"w"}, Usage: "pcapng `FILE` to make, which root alone can read; - is standard output"},
			&cli.BoolFlag{Name: "overwrite", Usage: "replace what is in FILE"},
			&cli.DurationFlag{Name: "duration", Usage: "end after `TIME`; 0: at Ctrl-C"},
		),
		Action: w.capture,
	}
}

func (w *ironwarp) capture(c *cli.Context) error {
	name := c.String("write")
	switch {
	case name == "":
		return &usageError{msg: "--write is missing", fix: "`ironwarp capture -w FILE`, or `ironwarp capture -w - | tshark -r -`"}
	case c.Duration("duration") < 0:
		return &usageError{msg: "--duration is negative"}
	case name == "-" && w.terminal:
		return &usageError{msg: "a capture would upset this terminal", fix: "pipe it into a program, such as `tshark -r -`, or name a file"}
	}
	v, err := w.captureTo(c, api.CaptureRequest{Peer: c.String("peer"), Payload: c.Bool("payload")}, func() (io.WriteCloser, error) {
		out, err := io.WriteCloser(unclosed{w.stdout}), error(nil)
		if name != "-" {
			out, err = createCapture(name, c.Bool("overwrite"))
		}
		if err == nil {
			fmt.Fprintln(w.stderr, "capturing; Ctrl-C ends it")
		}
		return out, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w.stderr, "%d captured, %d dropped\n", v.Captured, v.Dropped)
	return nil
}

// unclosed is standard output, which stays open.
type unclosed struct{ io.Writer }

// Close does nothing, and does not fail.
func (unclosed) Close() error { return nil }

// createCapture makes a file that this user alone can read. It fails where there is one already, unless it may be overwritten: then the
// name is that of a new file, and whoever owns the old one, has it open or knows it by another name sees nothing of the capture.
func createCapture(name string, overwrite bool) (*os.File, error) {
	if st, err := os.Lstat(name); overwrite && err == nil {
		switch {
		case st.Mode().Type() == os.ModeSymlink:
			return nil, &api.Error{Code: api.CodeInvalid, Message: name + " is a symbolic link", Fix: "name the file itself"}
		case !st.Mode().IsRegular():
			return nil, &api.Error{Code: api.CodeInvalid, Message: name + " is no file", Fix: "name a file, or write to a pipe with -w -"}
		}
		if err := os.Remove(name); err != nil {
			return nil, fmt.Errorf("cannot replace the file %s: %w", name, err)
		}
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, os.ErrExist):
		return nil, &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("there is a file %s already", name), Fix: "name another one, or replace it with --overwrite"}
	case err != nil:
		return nil, fmt.Errorf("cannot make the file %s: %w", name, err)
	}
	return f, nil
}

// captureEnd bounds how long what is still in the daemon's ring takes at the end.
const captureEnd = 10 * time.Second

// captureTo captures to what open opens, once the daemon captures, until Ctrl-C, the --duration, or the end of that. It returns what the
// daemon says about the capture at its end.
func (w *ironwarp) captureTo(c *cli.Context, q api.CaptureRequest, open func() (io.WriteCloser, error)) (v api.Capture, err error) {
	cl := w.client(c)
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.Context)) // the file is finished after Ctrl-C
	defer cancel()
	id, file, err := cl.Capture(ctx, q)
	if err != nil {
		return v, err
	}
	defer file.Close()
	out, err := open()
	if err != nil {
		return v, err
	}
	defer out.Close()
	until := c.Context
	if d := c.Duration("duration"); d > 0 {
		var over context.CancelFunc
		until, over = context.WithTimeout(until, d)
		defer over()
	}
	type end struct {
		v   api.Capture
		err error
	}
	ended := make(chan end, 1)
	go func() {
		select {
		case <-until.Done():
		case <-ctx.Done():
			return
		}
		defer time.AfterFunc(captureEnd, cancel)
		v, err := cl.EndCapture(ctx, id)
		ended <- end{v, err}
	}()
	from := &source{Reader: file}
	_, err = io.Copy(out, from)
	switch {
	case from.err != nil && until.Err() == nil:
		return v, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the daemon has ended, and the capture with it: %v", from.err), Fix: "its log says why. What was captured until then is in the file"}
	case errors.Is(err, syscall.EPIPE):
		return v, nil // who reads has seen enough
	case errors.Is(err, syscall.ENOSPC):
		return v, &api.Error{Code: api.CodeNoSpace, Message: fmt.Sprintf("cannot write the capture: %v", err), Fix: "make room, or capture for a shorter --duration, of one --peer, or with less in it (without --payload)"}
	case err != nil:
		return v, fmt.Errorf("cannot write the capture: %w", err)
	case until.Err() == nil:
		return v, &api.Error{Code: api.CodeUnavailable, Message: "the daemon has ended, and the capture with it", Fix: "its log says why"}
	}
	e := <-ended
	return e.v, e.err
}

// source notes how a reader fails, of a copy whose writer may fail, too.
type source struct {
	io.Reader
	err error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// captureText is a capture that runs.
func captureText(p api.Capture) string {
	who, what := "peer "+p.Peer, "headers"
	if p.Peer == "" {
		who = "all peers"
	}
	if p.Payload {
		what = "with payload"
	}
	return fmt.Sprintf("capture of the streams with %s, %s, in clear: for %s, read by process %d, %d captured, %d dropped", who, what, ageText(p.AgeSeconds), p.PID, p.Captured, p.Dropped)
}
