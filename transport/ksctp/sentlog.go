package ksctp

// sentLog knows the last messages that the kernel was given, each as stream<<16 |
// size. The kernel does not tell which of them are acknowledged, but how much
// memory those take that are not: they are the newest, and no more of them than
// that memory can hold.
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

// leastLog is how many messages are known at least: so seldom has the kernel to be
// asked.
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

// trim forgets what is acknowledged for sure, given how much memory is in use.
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

// of is how many messages of a stream there are.
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
