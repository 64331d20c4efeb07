package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/tcp"
	"github.com/ironwarp/ironwarp/scsi"
	"golang.org/x/sys/unix"
)

// anyone lets everybody log in.
type anyone struct{}

func (anyone) Admit(*iscsi.Login) (a iscsi.Admission, redirect string, st iscsi.LoginStatus) {
	return a, "", iscsi.LoginOK
}
func (anyone) Establish(*iscsi.Login) (uint16, iscsi.LoginStatus) { return 1, iscsi.LoginOK }

// recordingUnit is a target with a unit of 1 MiB. It ends SYNCHRONIZE CACHE with a status, and says what commands have come.
func recordingUnit(t *testing.T, flush scsi.Status) (url string, commands func() []byte) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var seen []byte
	over := make(chan struct{})
	go func() {
		defer close(over)
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		c := tcp.NewConn(nc)
		values := iscsi.DefaultValues()
		l := iscsi.NewLogin(anyone{}, &values, 1)
		for done := false; !done; {
			h, data, err := c.ReadPDU()
			if err != nil {
				return
			}
			var r iscsi.LoginResponse
			var text []byte
			r, text, done, err = l.Request(&h, data)
			r.Put(&h)
			if errors.Join(err, c.WritePDU(&h, text)) != nil {
				return
			}
		}
		for statSN := uint32(10); ; statSN++ {
			h, _, err := c.ReadPDU()
			if err != nil || h.Opcode() == iscsi.OpLogout {
				return
			}
			k, err := iscsi.ParseCommand(&h)
			if err != nil {
				return
			}
			seen = append(seen, k.CDB[0])
			n := iscsi.Numbers{StatSN: statSN, ExpCmdSN: k.CmdSN + 1, MaxCmdSN: k.CmdSN + 64}
			r := iscsi.Response{Response: iscsi.CommandCompleted, ITT: k.ITT, Numbers: n}
			var data []byte
			switch k.CDB[0] {
			case scsi.SynchronizeCache10:
				r.Status = uint8(flush)
			case scsi.ServiceActionIn16:
				data = make([]byte, 32)
				binary.BigEndian.PutUint64(data, 2047)
				binary.BigEndian.PutUint32(data[8:], 512)
			}
			r.Put(&h)
			if data != nil {
				d := iscsi.DataIn{Final: true, HasStatus: true, ITT: k.ITT, TTT: iscsi.NoTag, Numbers: n}
				d.Put(&h)
			}
			if c.WritePDU(&h, data) != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { ln.Close(); <-over })
	return "iscsi://" + ln.Addr().String() + "/iqn.2026-01.org.example:disk/0", func() []byte { <-over; return seen }
}

// TestCopyHasEndedWhenItIsOnTheMedium: the last command is a flush, and where that fails, so does the copy.
func TestCopyHasEndedWhenItIsOnTheMedium(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(file, bytes.Repeat([]byte("data"), 1024), 0o600); err != nil {
		t.Fatal(err)
	}
	for flush, want := range map[scsi.Status]int{scsi.Good: 0, scsi.CheckCondition: 1} {
		url, commands := recordingUnit(t, flush)
		var stderr bytes.Buffer
		if got := run(t.Context(), []string{"ironwarp", "iscsi", "cp", file, url}, nil, &bytes.Buffer{}, &stderr); got != want {
			t.Errorf("a flush with status %#x: exit status %d: %s", byte(flush), got, &stderr)
		}
		if all := commands(); len(all) < 2 || all[len(all)-1] != scsi.SynchronizeCache10 || !slices.Contains(all, scsi.Write16) {
			t.Errorf("the commands were %x", all)
		}
	}
}

// TestCopyFromAPipeThatGivesNothingIsInterrupted, as by Ctrl-C.
func TestCopyFromAPipeThatGivesNothingIsInterrupted(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	stdin := os.Stdin
	os.Stdin = r
	defer func() { os.Stdin = stdin }()
	url, commands := recordingUnit(t, scsi.Good)
	if _, err := w.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var reads sync.WaitGroup
	defer reads.Wait()
	defer cancel()
	reads.Go(func() {
		defer cancel()
		for waits := 1; waits > 0 && ctx.Err() == nil; { // until it reads, and gets no more
			var err error
			if waits, err = unix.IoctlGetInt(int(w.Fd()), unix.TIOCINQ); err != nil {
				t.Error(err)
			}
			<-time.After(time.Millisecond)
		}
	})
	var stderr bytes.Buffer
	if got := run(ctx, []string{"ironwarp", "iscsi", "cp", "-", url}, nil, &bytes.Buffer{}, &stderr); got == 0 || strings.Contains(stderr.String(), "panic") {
		t.Errorf("exit status %d: %s", got, &stderr)
	}
	if all := commands(); slices.Contains(all, scsi.Write16) {
		t.Errorf("the commands were %x", all)
	}
}
