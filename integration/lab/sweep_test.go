package lab

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const ownerVar = "IRONWARP_LAB_OWNER"

// owner makes a lab in a process that is going to be killed.
func owner() int {
	l, err := New(context.Background(), Config{Dir: os.Getenv(ownerVar)})
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	if os.Getenv(ownerVar+"_KEEP") != "" {
		if err := l.Keep(); err != nil {
			fmt.Println("error:", err)
			return 1
		}
	}
	fmt.Println(l.Name(), l.Host("alpha").CharonPID())
	select {}
}

// killedOwner returns the name of a lab whose owner was killed, and the process
// id of a charon in it.
func killedOwner(t *testing.T, dir string, keep bool) (name string, charon int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), ownerVar+"="+dir)
	if keep {
		cmd.Env = append(cmd.Env, ownerVar+"_KEEP=1")
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if _, err := fmt.Sscan(line, &name, &charon); err != nil {
		t.Fatalf("the owner said %q", line)
	}
	return name, charon
}

func left(name, dir string) []string {
	var all []string
	for _, ns := range namespaces() {
		if strings.HasPrefix(ns, name+"-") {
			all = append(all, ns)
		}
	}
	if _, err := os.Stat(dir + "/" + name); err == nil {
		all = append(all, dir+"/"+name)
	}
	return all
}

func TestLabOfAKilledOwnerIsSweptAndALivingOnesIsNot(t *testing.T) {
	Require(t)
	dir, err := os.MkdirTemp("", "sw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	mine, err := New(t.Context(), Config{Dir: dir, NoCharon: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mine.Close() })
	name, charon := killedOwner(t, dir, false)
	if len(left(name, dir)) == 0 || zombie(charon) {
		t.Fatal("the killed owner left nothing to sweep")
	}
	if err := Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l := left(name, dir); len(l) > 0 {
		t.Errorf("left after the sweep: %v", l)
	}
	ends(t, charon)
	if l := left(mine.Name(), dir); len(l) != 4 {
		t.Errorf("of a living owner's lab only %v is left", l)
	}
}

// ends waits until a process has ended. A killed one leaves its namespace a moment
// earlier, and another process that makes labs may be sweeping the same lab.
func ends(t *testing.T, pid int) {
	t.Helper()
	for end := time.After(closeTimeout); !zombie(pid); {
		select {
		case <-end:
			t.Fatalf("process %d runs on", pid)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestKeptLabOutlivesItsOwnerUntilDiscarded(t *testing.T) {
	Require(t)
	dir, err := os.MkdirTemp("", "sw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	name, charon := killedOwner(t, dir, true)
	if err := Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l := left(name, dir); len(l) != 4 || zombie(charon) {
		t.Errorf("of a kept lab only %v is left", l)
	}
	if err := Discard(t.Context(), dir, name); err != nil {
		t.Fatal(err)
	}
	if l := left(name, dir); len(l) > 0 {
		t.Errorf("left after Discard: %v", l)
	}
	ends(t, charon)
	if err := Discard(t.Context(), dir, "../../etc"); err == nil {
		t.Error("a name that is no lab's was discarded")
	}
}

func TestTwoLabsAtOnce(t *testing.T) {
	a, b := Start(t, Config{}), Start(t, Config{})
	for _, l := range []*Lab{a, b} {
		echoOnce(t, l.Host("alpha"), l.Host("beta"), netip.AddrPortFrom(l.Host("beta").Addr(), 7471))
	}
}
