package mpa

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

// TestDelayedStartup is RFC 5044 section 7.1.3: text first, then MPA, on a
// socket that both ends go on with at the same octet.
func TestDelayedStartup(t *testing.T) {
	for _, kind := range []string{"tcp", "pipe"} {
		for _, markers := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/markers=%v", kind, markers), func(t *testing.T) {
				a, b := netPair(t, kind)
				cfg := &Config{Markers: markers, PrivateData: []byte("after the text")}
				done := make(chan accepted, 1)
				go func() {
					// The text is read octet by octet, to read no more than the line.
					line, err := readLine(b)
					if err == nil && line != "hello, MPA?" {
						err = fmt.Errorf("the first line is %q", line)
					}
					if err == nil {
						_, err = io.WriteString(b, "ack, MPA\n")
					}
					if err != nil {
						done <- accepted{nil, err}
						return
					}
					done <- <-serve(t, b, cfg)
				}()
				if _, err := io.WriteString(a, "hello, MPA?\n"); err != nil {
					t.Fatal(err)
				}
				if line, err := readLine(a); err != nil || line != "ack, MPA" {
					t.Fatalf("%q, %v", line, err)
				}
				client, err := Client(context.Background(), a, cfg)
				r := <-done
				if err != nil || r.err != nil {
					t.Fatal(err, r.err)
				}
				if string(client.PrivateData()) != "after the text" || string(r.c.PrivateData()) != "after the text" {
					t.Errorf("private data %q and %q", client.PrivateData(), r.c.PrivateData())
				}
				exchangeSegments(t, client, r.c, 500)
				exchangeSegments(t, r.c, client, 500)
			})
		}
	}
}

func readLine(r io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[0])
	}
}

// bufferedConn is how a ULP that read its text through a buffer passes on what
// that buffer holds.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c bufferedConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// TestDelayedStartupBehindAReader: the ULP's buffer has read text, request and
// nothing is lost of either.
func TestDelayedStartupBehindAReader(t *testing.T) {
	a, b := netPair(t, "tcp")
	if _, err := a.Write(append([]byte("login\n"), frameBytes(t, Frame{Revision: 1, CRC: true, PrivateData: []byte("pd")})...)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(b)
	if line, err := r.ReadString('\n'); err != nil || line != "login\n" {
		t.Fatalf("%q, %v", line, err)
	}
	done := serve(t, bufferedConn{b, r}, nil)
	rep, _, _, err := readFrame(a, true)
	if err != nil || rep.Reject {
		t.Fatalf("%+v, %v", rep, err)
	}
	res := <-done
	if res.err != nil || string(res.c.PrivateData()) != "pd" {
		t.Fatalf("%v", res.err)
	}
	if _, err := a.Write(frame("segment", true)); err != nil {
		t.Fatal(err)
	}
	if s := until(1, 0); res.c.Receive(s) != errEnough || string(s.segs[0]) != "segment" {
		t.Fatalf("%q", s.segs)
	}
}

// TestEarlyFPDUsInTheSegmentOfTheFrame: what follows a start-up frame in the
// same TCP segment belongs to full operation.
func TestEarlyFPDUsInTheSegmentOfTheFrame(t *testing.T) {
	early := append(frame("first", true), frame("second", true)...)
	t.Run("behind the request", func(t *testing.T) {
		a, b := netPair(t, "tcp")
		done := serve(t, b, nil)
		if _, err := a.Write(append(frameBytes(t, Frame{Revision: 2, CRC: true, Enhanced: &enhanced.Data{}}), early...)); err != nil {
			t.Fatal(err)
		}
		r := <-done
		if r.err != nil {
			t.Fatal(r.err)
		}
		if s := until(2, 0); r.c.Receive(s) != errEnough || string(s.segs[0]) != "first" || string(s.segs[1]) != "second" {
			t.Fatalf("%q", s.segs)
		}
	})
	t.Run("behind the reply", func(t *testing.T) {
		a, b := netPair(t, "tcp")
		go func() {
			readFrame(b, false)
			b.Write(append(frameBytes(t, Frame{Reply: true, Revision: 2, CRC: true, Enhanced: &enhanced.Data{}}), early...))
		}()
		c, err := Client(context.Background(), a, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := until(2, 0); c.Receive(s) != errEnough || string(s.segs[0]) != "first" || string(s.segs[1]) != "second" {
			t.Fatalf("%q", s.segs)
		}
	})
}
