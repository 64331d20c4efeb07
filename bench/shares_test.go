package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// traces is what `go tool pprof -traces` prints.
const traces = `File: bench
Type: cpu
-----------+-------------------------------------------------------
     150ms   internal/runtime/syscall/linux.Syscall6
             syscall.Syscall6
             github.com/ironwarp/ironwarp/transport/sctp.(*sender).sendmmsg
             github.com/ironwarp/ironwarp/transport/sctp.(*reader).hand
             net.(*rawConn).Read
-----------+-------------------------------------------------------
     250ms   internal/runtime/syscall/linux.Syscall6
             syscall.RawSyscall6
             github.com/ironwarp/ironwarp/internal/sockio.(*Writer).send
             github.com/ironwarp/ironwarp/mpa.(*Conn).TryFlush
-----------+-------------------------------------------------------
      0.2s   internal/runtime/syscall/linux.Syscall6
             syscall.Syscall6
             github.com/ironwarp/ironwarp/internal/sockio.(*Reader).receive
             github.com/ironwarp/ironwarp/mpa.(*Conn).Receive
-----------+-------------------------------------------------------
     100ms   runtime.memmove
             github.com/ironwarp/ironwarp/rdmap.(*sink).Segment
-----------+-------------------------------------------------------
      90ms   github.com/ironwarp/ironwarp/internal/crc32c.foldAVX512
             github.com/ironwarp/ironwarp/mpa.(*Conn).parse
-----------+-------------------------------------------------------
     100ms   runtime.futex
             runtime.notewakeup
-----------+-------------------------------------------------------
      50ms   internal/runtime/syscall/linux.Syscall6
             internal/runtime/syscall/linux.EpollWait
             runtime.netpoll
             runtime.findRunnable
-----------+-------------------------------------------------------
      60ms   github.com/ironwarp/ironwarp/verbs.(*QP).PostSend
`

func TestSharesAddUpToTheProfile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte("#!/bin/sh\ncat <<'EOF'\n"+traces+"EOF\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("./shares.sh", "profile")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const want = `  40.0 %  system calls that send
  20.0 %  system calls that receive
  15.0 %  scheduling, wake-ups
  10.0 %  copies in user space
   9.0 %  CRC
   6.0 %  protocol and caller
`
	if string(out) != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}
