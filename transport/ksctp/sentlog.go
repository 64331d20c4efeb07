package ksctp

// sentLog records the last messages given to the kernel, each as stream<<16 | size. The
// kernel does not report which of them are acknowledged, only how much memory the
// unacknowledged ones take: they are the newest, and at most as many as fit that memory.
type sentLog struct {
	ring []uint32
	head int // the oldest
	n    int
}

func (l *sentLog) at(i int) uint32 { return l.ring[(l.head+i)&(len(l.ring)-1)] }

func (l *sentLog) add(stream uint16, size int) {
	l.ring[(l.head+l.n)&(len(l.ring)-1)] = uint32(stream)<<16 | uint32(size)
	l.n++
}

// leastLog is how many messages are recorded before the kernel has to be asked.
const leastLog = 512

// reserve makes room for n more.
func (l *sentLog) reserve(n int, used func() (int, error)) {
	if l.n+n <= len(l.ring) {
		return
	}
	l.trim(used)
	size := max(len(l.ring), leastLog)
	for l.n+n > size/2 {
		size *= 2
	}
	if size == len(l.ring) {
		return
	}
	ring := make([]uint32, size)
	for i := range l.n {
		ring[i] = l.at(i)
	}
	l.ring, l.head = ring, 0
}

// trim forgets what is certainly acknowledged, given the memory in use.
func (l *sentLog) trim(used func() (int, error)) {
	if l.n == 0 {
		return
	}
	memory, err := used()
	if err != nil {
		return
	}
	k := 0
	for k < l.n {
		memory -= int(l.at(l.n-1-k)&0xffff) + minCharge
		if memory < 0 {
			break
		}
		k++
	}
	l.head = (l.head + l.n - k) & (len(l.ring) - 1)
	l.n = k
}

// of returns the number of messages of a stream.
func (l *sentLog) of(stream uint16) (n int) {
	for i := range l.n {
		if uint16(l.at(i)>>16) == stream {
			n++
		}
	}
	return n
}

func (l *sentLog) bytes() (n int) {
	for i := range l.n {
		n += int(l.at(i) & 0xffff)
	}
	return n
}
