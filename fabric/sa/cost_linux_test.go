package sa

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// cpu is what a function takes of this thread's time, whatever else the machine does.
func cpu(t *testing.T, f func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := now()
	f()
	return now() - before
}

// crowded is a directory that three hosts have filled with all the services that they may have, whose leases end one by one.
func crowded(t *testing.T) (l *lab, hosts []mad.GUID) {
	l = newLab(t)
	hosts = []mad.GUID{0x51_0000_0001, 0x52_0000_0001, 0x53_0000_0001}
	for _, h := range hosts {
		l.up(Port{GUID: h})
		for n := range MaxServicesPerPort {
			v := serviceAt(uint64(n), h, "docs")
			v.Lease = 60
			l.now = l.now.Add(time.Microsecond)
			l.ok(by(h).setService(v))
		}
	}
	return l, hosts
}

// What a host's changes and leases cost does not grow with what others have registered: a request must not be a walk through all services, since
// nobody else is served meanwhile.
func TestCostOfAChange(t *testing.T) {
	if raceEnabled {
		t.Skip("times are those of a program without the race detector")
	}
	const times = 200
	const most = 300 * time.Microsecond // it is 7, and was 1,100 and 9,000 with walks
	l, hosts := crowded(t)
	own := by(hosts[0])
	took := cpu(t, func() {
		for n := range times {
			l.ok(own.deleteService(serviceAt(uint64(n), hosts[0], "")))
			l.services.list()
		}
	}) / times
	t.Logf("a change takes %v", took)
	if took > most {
		t.Errorf("a change among %d services takes %v, more than %v", len(l.services.of), took, most)
	}
	l.now = l.now.Add(60*time.Second - 3*MaxServicesPerPort*time.Microsecond + times*time.Microsecond)
	before := len(l.services.of)
	took = cpu(t, func() {
		for range times {
			l.now = l.now.Add(time.Microsecond)
			l.do(own.to(mad.MethodGet, mad.AttrClassPortInfo, 0, nil))
		}
	}) / times
	t.Logf("a request at the end of a lease takes %v", took)
	if ended := before - len(l.services.of); ended < times-2 || ended > times+2 {
		t.Fatalf("%d leases have ended", ended)
	}
	if took > most {
		t.Errorf("a request when a lease ends takes %v, more than %v", took, most)
	}
}
