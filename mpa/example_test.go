package mpa_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/ironwarp/ironwarp/mpa"
)

// Both ends talk text first and turn MPA on when they have agreed to (RFC 5044
// section 7.1.3). A ULP that reads its text through a buffer hands MPA a
// connection that reads through it, too.
func Example_delayedStartup() {
	a, b := net.Pipe()
	responder := func() error {
		in := bufio.NewReader(b)
		if _, err := in.ReadString('\n'); err != nil {
			return err
		}
		// The last streaming message; what comes next is the MPA request.
		if _, err := io.WriteString(b, "yes\n"); err != nil {
			return err
		}
		req, err := mpa.Server(context.Background(), readThrough{b, in}, nil)
		if err != nil {
			return err
		}
		_, err = req.Accept(context.Background(), mpa.AcceptOptions{})
		return err
	}
	defer b.Close()
	ended := make(chan error, 1)
	go func() { ended <- responder() }()

	io.WriteString(a, "RDMA?\n")
	in := bufio.NewReader(a)
	answer, err := in.ReadString('\n')
	if err != nil {
		fmt.Println(err)
		return
	}
	conn, err := mpa.Client(context.Background(), readThrough{a, in}, nil)
	if err := errors.Join(err, <-ended); err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	fmt.Printf("%sMPA revision %d, CRC %v\n", answer, conn.Revision(), conn.CRC())
	// Output:
	// yes
	// MPA revision 2, CRC true
}

// readThrough is a connection of which a buffer has read ahead.
type readThrough struct {
	net.Conn
	in *bufio.Reader
}

func (c readThrough) Read(p []byte) (int, error) { return c.in.Read(p) }
