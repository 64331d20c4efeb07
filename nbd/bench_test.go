package nbd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// pipeline sends the same requests and reads their replies, without
// allocating: replyLen bytes in all.
type pipeline struct {
	c        net.Conn
	requests []byte
	replies  []byte
}

func newPipeline(t testing.TB, uri string, typ uint16, depth, n int) *pipeline {
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	c := (&server{t: t, by: toSocket(u.Query().Get("socket"))}).connect(false)
	p := &pipeline{c: c, replies: make([]byte, depth*16)}
	for i := range depth {
		var payload []byte
		if typ == cmdWrite {
			payload = make([]byte, n)
		}
		p.requests = nbdtest.AppendRequest(p.requests, 0, typ, uint64(i), uint64(i*n), uint32(n), payload)
	}
	if typ == cmdRead {
		p.replies = make([]byte, depth*(16+n))
	}
	return p
}

func (p *pipeline) round() error {
	if _, err := p.c.Write(p.requests); err != nil {
		return err
	}
	_, err := io.ReadFull(p.c, p.replies)
	return err
}

func TestNoAllocationsPerRequest(t *testing.T) {
	uri, _, _ := fileServer(t, 4<<20)
	for _, c := range []struct {
		name     string
		typ      uint16
		depth, n int
	}{
		{"read", cmdRead, 1, 4096}, {"write", cmdWrite, 1, 4096}, {"reads", cmdRead, 32, 4096}, {"writes", cmdWrite, 32, 4096},
		{"large read", cmdRead, 2, 1 << 20}, {"large write", cmdWrite, 1, 300_000},
	} {
		p := newPipeline(t, uri, c.typ, c.depth, c.n)
		var err error
		if n := testing.AllocsPerRun(200, func() { err = errors.Join(p.round()) }); n >= 1 || err != nil {
			t.Errorf("%s: %v allocations for %d requests, %v", c.name, n, c.depth, err)
		}
	}
}

func BenchmarkServer(b *testing.B) {
	uri, _, _ := fileServer(b, 64<<20)
	for _, c := range []struct {
		name string
		typ  uint16
		n    int
	}{{"read4K", cmdRead, 4096}, {"write4K", cmdWrite, 4096}} {
		for _, depth := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/depth%d", c.name, depth), func(b *testing.B) {
				p := newPipeline(b, uri, c.typ, depth, c.n)
				b.ReportAllocs()
				b.SetBytes(int64(c.n))
				for i := 0; i < b.N; i += depth {
					if err := p.round(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkFio runs the same fio jobs on this server in a process of its own,
// on qemu-nbd and on nbdkit, one after the other on the same cached file. It
// reports operations per second and each server's CPU time per operation.
func BenchmarkFio(b *testing.B) {
	fio := tool(b, "fio")
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	file := filepath.Join(dir, "disk")
	if err := os.WriteFile(file, randomBytes(256<<20), 0o600); err != nil {
		b.Fatal(err)
	}
	syscall.Sync() // or the first server is measured during the write-back
	socket := func(name string) string { return filepath.Join(dir, name) }
	servers := []struct {
		name string
		argv []string
	}{
		{"ironwarp", []string{self}},
		{"qemu-nbd", []string{"qemu-nbd", "-k", socket("qemu-nbd"), "-f", "raw", "-t", "-e", "8", file}},
		{"nbdkit", []string{"nbdkit", "-U", socket("nbdkit"), "-f", "file", file}},
	}
	for _, job := range []struct {
		rw, bs string
		depth  int
	}{
		{"randread", "4k", 1}, {"randwrite", "4k", 1}, {"randread", "4k", 32}, {"randwrite", "4k", 32}, {"read", "1m", 4}, {"write", "1m", 4},
	} {
		for _, s := range servers {
			b.Run(fmt.Sprintf("%s-%s-%d/%s", job.rw, job.bs, job.depth, s.name), func(b *testing.B) {
				tool(b, s.argv[0])
				pid := start(b, s.argv, serveEnv+"="+file+":"+socket("ironwarp"), socket(s.name))
				before := cpuTime(b, pid)
				out := fio("--name=job", "--ioengine=nbd", "--uri=nbd+unix:///?socket="+socket(s.name), "--rw="+job.rw, "--bs="+job.bs,
					fmt.Sprintf("--iodepth=%d", job.depth), "--size=256m", "--norandommap", "--time_based", "--runtime=2", "--output-format=json")
				used := cpuTime(b, pid) - before
				type result struct {
					IOPS float64
					N    float64 `json:"total_ios"`
				}
				var r struct {
					Jobs []struct{ Read, Write result }
				}
				if err := json.Unmarshal([]byte(out[strings.Index(out, "{"):]), &r); err != nil {
					b.Fatalf("%v in\n%s", err, out)
				}
				x := r.Jobs[0].Read
				if x.N == 0 {
					x = r.Jobs[0].Write
				}
				b.ReportMetric(x.IOPS, "IOPS")
				b.ReportMetric(float64(used.Microseconds())/x.N, "server-us/op")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// start starts a server and waits until it answers.
func start(b *testing.B, argv []string, env, socket string) (pid int) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	os.Remove(socket)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; <-tick.C {
		c, err := net.Dial("unix", socket)
		if err == nil {
			defer c.Close()
			cl, err := nbdtest.Hello(c, 3)
			if err == nil {
				_, err = cl.Option(abort, nil)
			}
			if err != nil {
				b.Fatalf("%s: %v", argv[0], err)
			}
			return cmd.Process.Pid
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s: %v", argv[0], err)
		}
	}
}

// cpuTime is what a process has used so far.
func cpuTime(b *testing.B, pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	var user, system int
	fmt.Sscan(f[11], &user)
	fmt.Sscan(f[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond
}
