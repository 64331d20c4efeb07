package rdmap

// fifo is a queue that grows up to a bound its user keeps.
type fifo[T any] struct {
	buf  []T
	head int
	n    int
}

func (f *fifo[T]) push(v T) {
	if f.n == len(f.buf) {
		buf := make([]T, max(4, 2*len(f.buf)))
		for i := range f.n {
			buf[i] = f.buf[(f.head+i)%len(f.buf)]
		}
		f.buf, f.head = buf, 0
	}
	f.buf[(f.head+f.n)%len(f.buf)] = v
	f.n++
}

// front is the oldest element; the queue must not be empty.
func (f *fifo[T]) front() *T { return &f.buf[f.head] }

// at is the element behind i others.
func (f *fifo[T]) at(i int) *T { return &f.buf[(f.head+i)%len(f.buf)] }

func (f *fifo[T]) pop() T {
	var zero T
	v := f.buf[f.head]
	f.buf[f.head] = zero
	f.head = (f.head + 1) % len(f.buf)
	f.n--
	return v
}
