package selinux

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/fabric/policy"
)

// Labels gives P_Keys their labels, for which SELinux has no statement: a policy.Policy.
type Labels interface {
	Partition(pkey uint16) (context string, ok bool)
}

// Decider is the kernel's policy as a policy.Decider. Its methods may be called by several
// goroutines at once.
type Decider struct {
	mount   Mount
	ask     func(subject, partition string, c class) (answer, error) // Mount.ask
	labels  Labels
	changed chan struct{}
	done    chan struct{}
	polling sync.WaitGroup

	mu      sync.Mutex // guards the fields below it; innermost
	page    page       // nil after Close
	answers map[pair]answer
	class   class
	err     error  // of looking up the class
	of      uint32 // the policy that answers, class and err are of
	known   bool   // they are of one
}

// pair are two labels.
type pair struct{ subject, partition string }

// ErrClosed means that the Decider was closed.
var ErrClosed = errors.New("it is closed")

// Open returns the kernel's decisions, with labels (nil: none) for P_Keys. It fails where
// the status page can't be mapped. Close it.
func (m Mount) Open(labels Labels) (*Decider, error) {
	p, err := m.openStatus()
	if err != nil {
		return nil, err
	}
	d := &Decider{mount: m, ask: m.ask, labels: labels, page: p, changed: make(chan struct{}, 1), done: make(chan struct{}), answers: make(map[pair]answer)}
	before := p.read()
	d.polling.Go(func() { d.poll(before) })
	return d, nil
}

// Close ends the notifications and releases the status page. What is asked later fails
// with ErrClosed. It returns an error if the kernel does not release the page.
func (d *Decider) Close() error {
	d.mu.Lock()
	p := d.page
	d.page = nil
	d.mu.Unlock()
	if p == nil {
		return nil
	}
	close(d.done)
	d.polling.Wait()
	return p.close()
}

// Changed receives a value, and keeps one, when the policy or its booleans were changed or
// SELinux was switched between enforcing and permissive, within a tenth of a second.
func (d *Decider) Changed() <-chan struct{} { return d.changed }

// poll looks at the status page, which it may do until Close has waited for it.
func (d *Decider) poll(before status) {
	p := d.mapped()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for p != nil {
		select {
		case <-d.done:
			return
		case <-ticker.C:
		}
		now := p.read()
		if now == before {
			continue
		}
		before = now
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
}

func (d *Decider) mapped() page {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.page
}

// MayModify asks the kernel, or returns what it has said since the policy was loaded. Where
// the policy does not have the class it is what the policy wants of unknown
// classes (handle_unknown): allowed, or ErrUnknownClass. It fails with policy.ErrContext, ErrUnknownLabel, ErrNoPolicy
// and ErrClosed, or where the kernel does not answer.
func (d *Decider) MayModify(subject, partition string) (bool, error) {
	a, err := d.answer(subject, partition)
	return a.allowed, err
}

// Enforces reports whether SELinux is enforcing, and the type of subject is not
// permissive.
func (d *Decider) Enforces(subject string) bool {
	s, err := d.status()
	if err != nil || s.enforcing == 0 {
		return err != nil
	}
	// The kernel says of a subject that it is permissive with any answer.
	a, err := d.answer(subject, subject)
	return err != nil || !a.permissive
}

// Partition returns the label of a P_Key, as the kernel writes it if it knows it.
func (d *Decider) Partition(pkey uint16) (context string, ok bool) {
	if d.labels == nil {
		return "", false
	}
	if context, ok = d.labels.Partition(pkey); ok {
		if c, err := d.mount.Canonical(context); err == nil {
			context = c
		}
	}
	return context, ok
}

// Source is SELinux and its mode, and why it may allow more than is to be expected.
func (d *Decider) Source() string {
	s, err := d.status()
	if err != nil {
		return "SELinux (closed)"
	}
	mode := "enforcing"
	if s.enforcing == 0 {
		mode = "permissive"
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.renewLocked(s)
	switch {
	case errors.Is(d.err, ErrUnknownClass) && s.denyUnknown == 0:
		mode += "; its policy has no class rdma_partition and allows what it does not know"
	case d.err != nil:
		mode += "; " + d.err.Error()
	}
	return "SELinux (" + mode + ")"
}

func (d *Decider) status() (status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.statusLocked()
}

func (d *Decider) statusLocked() (status, error) {
	if d.page == nil {
		return status{}, fmt.Errorf("ask SELinux: %w", ErrClosed)
	}
	return d.page.read(), nil
}

// renewLocked forgets what an earlier policy has said.
func (d *Decider) renewLocked(s status) {
	if d.known && d.of == s.policyload && d.err == nil {
		return
	}
	clear(d.answers)
	d.class, d.err = d.mount.class()
	d.of, d.known = s.policyload, true
}

// answer returns what the policy says. An answer is kept only if the policy is the same
// before and after the question. While a policy is being loaded the kernel may answer by the new one
// before the page shows it: such an answer is kept until then, and is right.
func (d *Decider) answer(subject, partition string) (answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for range maxRetries {
		s, err := d.statusLocked()
		if err != nil {
			return answer{}, err
		}
		d.renewLocked(s)
		if a, ok := d.answers[pair{subject, partition}]; ok {
			return a, nil
		}
		a, err := d.askLocked(subject, partition, s)
		if now, _ := d.statusLocked(); now.policyload != s.policyload {
			continue
		}
		if err != nil {
			return answer{}, err
		}
		if len(d.answers) == maxAnswers {
			clear(d.answers)
		}
		d.answers[pair{subject, partition}] = a
		return a, nil
	}
	return answer{}, fmt.Errorf("ask SELinux whether %s may modify %s: its policy was changed %d times meanwhile", subject, partition, maxRetries)
}

func (d *Decider) askLocked(subject, partition string, s status) (answer, error) {
	switch {
	case errors.Is(d.err, ErrUnknownClass) && s.denyUnknown == 0:
		for _, label := range []string{subject, partition} {
			if _, err := d.mount.Canonical(label); err != nil {
				return answer{}, err
			}
		}
		return answer{allowed: true}, nil
	case d.err != nil:
		return answer{}, d.err
	}
	return d.ask(subject, partition, d.class)
}

var _ policy.Enforcer = (*Decider)(nil)
