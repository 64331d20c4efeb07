package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

func TestLocksAreHeldWhereTheyAreNeeded(t *testing.T) {
	const head = `package p

import (
	"sync"
	"sync/atomic"
)

type inner struct{ deep int }

type T struct {
	free int
	mu   sync.Mutex // guards the fields below it
	n    int
	inner
	seen atomic.Int32

	after int
}

type outer struct{ t T }

// part is guarded by T.mu.
type part struct {
	n int
}

func (t *T) addLocked() { t.n++ }
func (t *T) endAndUnlock() { t.n++; t.mu.Unlock() }
func (p *part) add() { p.n++ }
func (t *T) lock()      { t.mu.Lock() }

`
	const two = "type T2 struct { mu sync.Mutex // guards the fields below it\n n int }"
	fset := token.NewFileSet()
	_, imp, err := listTyped("sync", "sync/atomic")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ src, want string }{
		{"func (t *T) f() { t.mu.Lock(); defer t.mu.Unlock(); t.n = t.free; t.addLocked() }", ""},
		{"func (t *T) f() { t.free = 1; t.after = 2; t.seen.Add(1) }", ""},
		{"func (t *T) f() { t.n = 1 }", "t.n is touched without mu, which guards it"},
		{"func (t *T) f() { t.deep = 1 }", "t.deep is touched without mu"},
		{"func (o *outer) f() int { return o.t.n }", "o.t.n is touched without mu"},
		{"func (t *T) f() { t.n = 1 // unlocked: the only one that knows it\n}", ""},
		{"func (t *T) f() { t.n = 1 // unlocked: \n}", "t.n is touched without mu"},
		{"func (t *T) f() { t.addLocked() }", "t.addLocked is called without its lock"},
		{"func (t *T) f() { g := t.addLocked; g() }", "t.addLocked is called without its lock"},
		{"func (t *T) fLocked() { t.n = 1; t.addLocked() }", ""},
		{"func (t *T) f() { t.lock(); defer t.mu.Unlock(); t.n = 1 }", ""},
		{"func (t *T) f() { t.mu.Lock(); defer t.mu.Unlock(); func() { t.n = 1 }() }", ""},
		{"func (t *T) f() { t.mu.Lock(); defer t.mu.Unlock(); go func() { t.n = 1 }() }", "t.n is touched without mu"},
		{"func (t *T) fLocked() { go func() { t.n = 1 }() }", "t.n is touched without mu"},
		{"func (t *T) f() { func() { t.mu.Lock(); defer t.mu.Unlock() }(); t.n = 1 }", "t.n is touched without mu"},
		{"func (t *T) with(f func()) { t.mu.Lock(); defer t.mu.Unlock(); f() }\nfunc (t *T) f() { t.with(func() { t.n = 1 }) }", ""},
		{"func (t *T) f() { t.mu.Lock(); defer t.mu.Unlock(); var wg sync.WaitGroup; wg.Go(func() { t.n = 1 }) }", "t.n is touched without mu"},
		{"// f counts.\n//\n// unlocked: nobody else has it yet.\nfunc (t *T) f() { t.n = 1 }", ""},
		{"func (t *T) init() { t.n = 1 }", ""},
		{"func (t *T) f() *int { return &t.n }", ""},
		{"func f() *T { t := &T{}; t.n = 1; t.addLocked(); return t }", ""},
		{"func f() *outer { o := new(outer); o.t.n = 1; return o }", ""},
		{"func f(t *T) int { var o outer; return o.t.n }", ""},
		{"type other struct { mu sync.Mutex // guards the fields below it\n n int }\nfunc f(t *T, o *other) { o.mu.Lock(); defer o.mu.Unlock(); t.n = o.n }", "t.n is touched without mu"},
		{"func (t *T) f(p *part) { t.mu.Lock(); defer t.mu.Unlock(); p.n = 1 }", ""},
		{"func f(p *part) { p.n = 1 }", "p.n is touched without mu"},
		{"func (t *T) f(p *part) { t.mu.Lock(); defer t.mu.Unlock(); p.add() }", ""},
		{"func f(p *part) { p.add() }", "p.add is called without mu, which guards p"},
		{"func (p *part) twice() { p.add(); p.add() }", ""},
		{"func (p *part) self(t *T) { t.mu.Lock(); defer t.mu.Unlock(); p.add() }\nfunc f(p *part, t *T) { p.self(t) }", ""},
		{"func f() { p := &part{}; p.add() }", ""},
		{"func (t *T) f() { t.mu.Lock(); t.endAndUnlock() }", ""},
		{"func (t *T) f() { if t.free > 0 { t.endAndUnlock() } }", "t.endAndUnlock is called without its lock"},
		{"type other struct { sync.Mutex // guards the fields below it\n n int }\nfunc f(o *other) { o.Lock(); defer o.Unlock(); o.n = 1 }", ""},
		{"type other struct { sync.Mutex // guards the fields below it\n n int }\nfunc f(o *other) { o.n = 1 }", "o.n is touched without Mutex"},
		{"type other struct { n int // guarded by T.mu\n}\nfunc f() *other { o := &other{}; o.n = 1; return o }", ""},
		{"type other struct { n int // guarded by T.mu\n}\nfunc f(o *other) { o.n = 1 }", "o.n is touched without mu"},
		{"type other struct { n int // guarded by T.lock\n}", "there is no mutex T.lock"},
		{"type other struct { mu sync.Mutex }", "say what the mutex guards"},
		{"type other struct { mu sync.Mutex // for all of it\n}", "say in its comment"},
		{"type other struct { saving sync.Mutex // held while it is written\n}", ""},

		// When it is held.
		{"func (t *T) f() { t.n = 1; t.mu.Lock(); t.mu.Unlock() }", "t.n is touched without mu"},
		{"func (t *T) f() { t.mu.Lock(); t.mu.Unlock(); t.n = 1 }", "t.n is touched without mu"},
		{"func (t *T) f() { t.mu.Lock(); t.endAndUnlock(); t.n = 1 }", "t.n is touched without mu"},
		{"func (t *T) fLocked() { t.mu.Unlock(); t.n = 1; t.mu.Lock() }", "t.n is touched without mu"},
		{"func (t *T) fLocked() { t.mu.Unlock(); t.addLocked(); t.mu.Lock() }", "t.addLocked is called without its lock"},
		{"func (t *T) fLocked() { t.n = 1; t.mu.Unlock(); t.mu.Lock(); t.n = 2 }", ""},
		{"func (t *T) f() { t.mu.Lock(); if t.n > 0 { t.mu.Unlock(); return }; t.n = 1; t.mu.Unlock() }", ""},
		{"func (t *T) f() { t.mu.Lock(); if t.n > 0 { t.mu.Unlock() }; t.n = 1 }", "t.n is touched without mu"},
		{"func (t *T) f() { t.mu.Lock(); if t.n > 0 { t.mu.Unlock(); panic(1) }; t.n = 1; t.mu.Unlock() }", ""},
		{"func (t *T) f() { if t.free > 0 { t.mu.Lock() }; t.n = 1 }", "t.n is touched without mu"},
		{"func (t *T) f() { if !t.mu.TryLock() { return }; t.n = 1; t.mu.Unlock() }", ""},
		{"func (t *T) f() { for t.mu.Lock(); t.n > 0; t.mu.Lock() { t.mu.Unlock() }; t.mu.Unlock() }", ""},
		{"func (t *T) f() { t.mu.Lock(); for range 3 { t.n = 1; t.mu.Unlock() } }", "t.n is touched without mu"},
		{"func (t *T) f() { t.mu.Lock(); for { if t.n > 0 { break }; t.mu.Unlock(); t.mu.Lock() }; t.n = 1; t.mu.Unlock() }", ""},
		{"func (t *T) f() { t.mu.Lock(); for { t.mu.Unlock(); if t.free > 0 { break }; t.mu.Lock() }; t.n = 1 }", "t.n is touched without mu"},
		{"func (t *T) f() { t.mu.Lock(); for range 3 { t.mu.Unlock(); if t.free > 0 { continue }; t.mu.Lock() }; t.n = 1 }", "t.n is touched without mu"},
		{"func (t *T) f() { t.mu.Lock()\nouter: for { for { t.mu.Unlock(); break outer } }\nt.n = 1 }", "t.n is touched without mu"},
		{"func (t *T) f() { t.mu.Lock(); switch t.n { case 1: t.mu.Unlock(); return; case 2: t.n = 3 }; t.n = 1; t.mu.Unlock() }", ""},
		{"func (t *T) f() { t.mu.Lock(); switch t.n { case 1: t.mu.Unlock(); fallthrough; case 2: t.n = 3 } }", "t.n is touched without mu"},
		{"func (t *T) f(c chan int) { t.mu.Lock(); select { case <-c: t.mu.Unlock(); default: t.n = 1; t.mu.Unlock() }; t.n = 2 }", "t.n is touched without mu"},
		{"func (t *T) f() { t.mu.Lock(); go t.addLocked(); t.mu.Unlock() }", "t.addLocked is called without its lock"},
		{"func (t *T) f() { t.mu.Lock(); defer t.endAndUnlock(); t.n = 1 }", ""},
		{"func (t *T) f() { g := func() { t.mu.Lock(); t.mu.Unlock(); t.n = 1 }; g() }", "t.n is touched without mu"},
		{"func (t *T) f() { t.mu.Unlock() }", "f unlocks mu, which it has not locked"},
		{"func (t *T) unlock() { t.mu.Unlock() }\nfunc (t *T) f() { t.lock(); t.n = 1; t.unlock() }", ""},
		{"func (t *T) Unlock() { t.mu.Unlock() }\nfunc (t *T) f() { t.lock(); defer t.Unlock(); t.n = 1 }", ""},
		{"func (t *T) Unlock() { t.mu.Unlock() }\nfunc (t *T) f() { t.Unlock() }", "t.Unlock is called without its lock"},
		{"func (t *T) unlock() { t.mu.Unlock() }\nfunc (t *T) f() { t.lock(); t.unlock(); t.n = 1 }", "t.n is touched without mu"},

		// What returns with a lock is named so.
		{"func (t *T) f() { t.mu.Lock() }", "f returns with mu"},
		{"func (t *T) f() { t.mu.Lock(); defer t.mu.Unlock(); t.n = 1 }", ""},
		{"func (t *T) f() { t.lock(); t.endAndUnlock() }", ""},
		{"func (t *T) lockIf() bool { t.mu.Lock(); if t.n > 0 { return true }; t.mu.Unlock(); return false }\nfunc (t *T) f() { if t.lockIf() { t.n = 1; t.mu.Unlock() } }", ""},
		{"func (t *T) lockBoth(u *T2) { u.mu.Lock(); u.mu.Unlock(); t.mu.Lock() }\nfunc (t *T) f(u *T2) { t.lockBoth(u); u.n = 1; t.mu.Unlock() }\n" + two, "u.n is touched without mu"},

		// The order of two.
		{"func (t *T) f() { t.mu.Lock(); t.g(); t.mu.Unlock() }\nfunc (t *T) g() { t.mu.Lock(); t.mu.Unlock() }", "t.g takes mu, which is held"},
		{"func (t *T) f() { t.mu.Lock(); t.g(); t.mu.Unlock() }\nfunc (t *T) g() { t.h() }\nfunc (t *T) h() { t.mu.Lock(); t.mu.Unlock() }", "t.g takes mu, which is held"},
		{"func (t *T) f(o *T) { t.mu.Lock(); o.g(); t.mu.Unlock() }\nfunc (t *T) g() { t.mu.Lock(); t.mu.Unlock() }", ""},
		{"func (t *T) f() { t.mu.Lock(); t.mu.Unlock(); t.g() }\nfunc (t *T) g() { t.mu.Lock(); t.mu.Unlock() }", ""},
		{"func (t *T) fLocked() { t.g() }\nfunc (t *T) g() { t.mu.Lock(); t.mu.Unlock() }", "t.g takes mu, which is held"},
		{"func (t *T) f() { t.mu.Lock(); go t.g(); t.mu.Unlock() }\nfunc (t *T) g() { t.mu.Lock(); t.mu.Unlock() }", ""},
		{"func (t *T) f(u *T2) { t.mu.Lock(); u.mu.Lock(); u.mu.Unlock(); t.mu.Unlock() }\n" + two, "T2.mu is taken while T.mu is held: no comment says in which order"},
		{"func (t *T) f(u *T2) { t.mu.Lock(); u.g(); t.mu.Unlock() }\nfunc (u *T2) g() { u.mu.Lock(); u.mu.Unlock() }\n" + two, "T2.mu is taken while T.mu is held: no comment says in which order"},
		{"func (t *T) f(u *T2) { t.mu.Lock(); u.mu.Lock(); u.mu.Unlock(); t.mu.Unlock() }\n// Lock order: T, T2.\n" + two, ""},
		{"func (t *T) f(u *T2) { t.mu.Lock(); u.mu.Lock(); u.mu.Unlock(); t.mu.Unlock() }\n// Lock order: T2.mu, T.mu.\n" + two, "T2.mu is taken while T.mu is held: comments say otherwise"},
		{"// Lock order: T, T9.\n" + two, "there is no mutex T9"},
		{"func (t *T) f(u *T3) { t.mu.Lock(); u.mu.Lock(); u.mu.Unlock(); t.mu.Unlock() }\ntype T3 struct { mu sync.Mutex // guards the fields below it; innermost\n n int }", ""},
		{"func (t *T) f(u *T3) { u.mu.Lock(); t.mu.Lock(); t.mu.Unlock(); u.mu.Unlock() }\ntype T3 struct { mu sync.Mutex // guards the fields below it; innermost\n n int }", "T.mu is taken while T3.mu is held: comments say otherwise"},
		{"func f() *T2 { u := &T2{}; u.mu.Lock(); return u }\n" + two, "f returns with mu"},
		{"func (t *T) f() { t.mu.Lock(); u := lockedNew(); u.mu.Unlock(); t.mu.Unlock() }\nfunc lockedNew() *T2 { u := &T2{}; u.mu.Lock(); return u }\n" + two, ""},
	} {
		f, err := parser.ParseFile(fset, "p/p.go", head+x.src+"\n", parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		found, err := locksOf(fset, "p", []*ast.File{f}, imp)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(x.src)
		expect(t, found, x.want)
	}
}
