// Package fifo is a queue that grows, in a ring.
package fifo

// first is the initial capacity of a queue.
const first = 4

// Queue is a queue that grows; its user bounds it. The zero value is empty.
type Queue[T any] struct {
	buf     []T
	head, n int
}

// Len returns the number of elements.
func (q *Queue[T]) Len() int { return q.n }

// Push appends an element.
func (q *Queue[T]) Push(v T) {
	if q.n == len(q.buf) {
		buf := make([]T, max(first, 2*len(q.buf)))
		k := copy(buf, q.buf[q.head:])
		copy(buf[k:], q.buf[:q.head])
		q.buf, q.head = buf, 0
	}
	q.n++
	*q.At(q.n - 1) = v
}

// At returns the element behind the i oldest; there must be one.
func (q *Queue[T]) At(i int) *T {
	if i += q.head; i >= len(q.buf) {
		i -= len(q.buf)
	}
	return &q.buf[i]
}

// Pop removes and returns the oldest element; there must be one.
func (q *Queue[T]) Pop() T {
	var zero T
	v := q.buf[q.head]
	q.buf[q.head] = zero
	if q.head++; q.head == len(q.buf) {
		q.head = 0
	}
	q.n--
	return v
}
