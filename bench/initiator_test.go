package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestInitiatorsMoveTheirJobsData: what an initiator writes is in the file afterwards, and what it has read
// is what was there.
func TestInitiatorsMoveTheirJobsData(t *testing.T) {
	image := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(imageSize); err != nil {
		t.Fatal(err)
	}
	disk, err := newFileTarget(image)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.close()
	ln, err := net.Listen("tcp", anyLoopback)
	if err != nil {
		t.Fatal(err)
	}
	rdma, ulp, err := listenRDMA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- disk.server.Serve(ctx, ln) }()
	go func() { ended <- disk.server.ServeRDMA(ctx, rdma, ulp) }()
	defer func() {
		cancel()
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}()
	pattern := byte(0)
	for name, dial := range map[string]func(context.Context, string, fioJob) (*initiator, error){
		"TCP": overTCP("None"), "TCP with digests": overTCP("CRC32C"), "RDMA": overISER,
	} {
		address := ln.Addr().String()
		if name == "RDMA" {
			address = rdma.Addr().String()
		}
		for _, j := range fioJobs {
			pattern++
			data := bytes.Repeat([]byte{pattern}, j.size()*j.depth)
			c, err := dial(t.Context(), address, j)
			if err != nil {
				t.Fatalf("%s: %s: %v", name, j.name, err)
			}
			next := 0
			c.place = func() uint64 {
				next++
				return uint64(next % j.depth * j.size())
			}
			got := make([]byte, len(data))
			if j.writes() {
				for _, m := range c.memory {
					copy(m, data)
				}
			} else if _, err := f.WriteAt(data, 0); err != nil {
				t.Fatal(err)
			}
			if n, err := c.run(upTo(100)); err != nil || n < 100 {
				t.Errorf("%s: %s: %d commands, %v", name, j.name, n, err)
			}
			if !j.writes() {
				got = bytes.Join(c.memory, nil)
			} else if _, err := f.ReadAt(got, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, data) {
				t.Errorf("%s: %s: not the data that were moved", name, j.name)
			}
			if err := c.wire.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
