package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
)

// state says how often each mutex is held at some place of a function, at least.
type state struct {
	depth map[*types.Var]int
	rest  int // of those that are not in depth
}

func (s state) of(m *types.Var) int {
	if d, ok := s.depth[m]; ok {
		return d
	}
	return s.rest
}

func (s state) add(m *types.Var, n int) { s.depth[m] = max(0, s.of(m)+n) }

func (s state) clone() state { return state{maps.Clone(s.depth), s.rest} }

// any reports whether any mutex is held.
func (s state) any() bool {
	for _, d := range s.depth {
		if d > 0 {
			return true
		}
	}
	return s.rest > 0
}

// join returns what is held whichever way a place was reached.
func join(states ...state) state {
	out := states[0].clone()
	for _, s := range states[1:] {
		for m := range s.depth {
			out.depth[m] = out.of(m)
		}
		for m, d := range out.depth {
			out.depth[m] = min(d, s.of(m))
		}
	}
	return out
}

func (s state) equal(o state) bool {
	for m, d := range s.depth {
		if o.of(m) != d {
			return false
		}
	}
	for m, d := range o.depth {
		if s.of(m) != d {
			return false
		}
	}
	return true
}

// flow follows one function's statements. What it holds at the end of each is known, and nil
// stands for a place that is not reached.
type flow struct {
	c      *lockChecker
	h      held            // what the function holds anywhere
	unsure state           // what it may hold when it begins, or not
	exits  []state         // what it holds where it ends
	late   []*ast.CallExpr // what it calls then
	silent int
	bases  map[*types.Var]string // of which value a mutex was last taken
	leaves []*leave              // what can be left, the innermost last
}

// leave is a statement that break or continue leave.
type leave struct {
	label string
	loop  bool
	ends  []state // at each break
	nexts []state // at each continue
}

// body follows a whole function.
func (w *flow) body(b *ast.BlockStmt, s state) {
	if end := w.list(b.List, &s); end != nil {
		w.exits = append(w.exits, *end)
	}
	for _, call := range w.late {
		for _, s := range w.exits {
			w.effect(call, s)
		}
	}
}

func (w *flow) list(l []ast.Stmt, s *state) *state {
	for _, n := range l {
		if s == nil {
			return nil
		}
		s = w.stmt(n, s, "")
	}
	return s
}

// merge joins the places that are reached.
func merge(places ...*state) *state {
	var reached []state
	for _, p := range places {
		if p != nil {
			reached = append(reached, *p)
		}
	}
	if len(reached) == 0 {
		return nil
	}
	s := join(reached...)
	return &s
}

func pointers(l []state) (p []*state) {
	for i := range l {
		p = append(p, &l[i])
	}
	return p
}

func (w *flow) stmt(n ast.Stmt, s *state, label string) *state {
	switch n := n.(type) {
	case nil, *ast.EmptyStmt:
	case *ast.BlockStmt:
		return w.list(n.List, s)
	case *ast.LabeledStmt:
		return w.stmt(n.Stmt, s, n.Label.Name)
	case *ast.IfStmt:
		s = w.stmt(n.Init, s, "")
		w.expr(n.Cond, *s)
		then, otherwise := s.clone(), s.clone()
		return merge(w.list(n.Body.List, &then), w.stmt(n.Else, &otherwise, ""))
	case *ast.ForStmt:
		s = w.stmt(n.Init, s, "")
		return w.loop(label, n.Cond != nil, s, func(s *state) *state {
			if n.Cond != nil {
				w.expr(n.Cond, *s)
			}
			return w.list(n.Body.List, s)
		}, func(s *state) *state { return w.stmt(n.Post, s, "") })
	case *ast.RangeStmt:
		w.expr(n.X, *s)
		return w.loop(label, true, s, func(s *state) *state {
			w.expr(n.Key, *s)
			w.expr(n.Value, *s)
			return w.list(n.Body.List, s)
		}, func(s *state) *state { return s })
	case *ast.SwitchStmt:
		s = w.stmt(n.Init, s, "")
		w.expr(n.Tag, *s)
		return w.clauses(label, n.Body, s)
	case *ast.TypeSwitchStmt:
		s = w.stmt(n.Init, s, "")
		return w.clauses(label, n.Body, w.stmt(n.Assign, s, ""))
	case *ast.SelectStmt:
		return w.clauses(label, n.Body, s)
	case *ast.BranchStmt:
		return w.branch(n, s)
	case *ast.ReturnStmt:
		for _, e := range n.Results {
			w.expr(e, *s)
		}
		w.exits = append(w.exits, s.clone())
		return nil
	case *ast.ExprStmt:
		w.expr(n.X, *s)
		if call, ok := n.X.(*ast.CallExpr); ok {
			if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "panic" {
				return nil
			}
		}
	case *ast.DeferStmt: // at some end of the function, of which nothing is known
		w.call(n.Call, *s, true, false)
		w.late = append(w.late, n.Call)
	case *ast.GoStmt:
		w.call(n.Call, *s, false, true)
	case *ast.AssignStmt:
		for _, e := range slices.Concat(n.Rhs, n.Lhs) {
			w.expr(e, *s)
		}
	case *ast.DeclStmt, *ast.IncDecStmt, *ast.SendStmt:
		w.expr(n, *s)
	}
	return s
}

// loop follows the body of a loop until nothing changes.
func (w *flow) loop(label string, ends bool, s *state, body, post func(*state) *state) *state {
	in := s.clone()
	round := func() (out state, l *leave) {
		l = &leave{label: label, loop: true}
		w.leaves = append(w.leaves, l)
		at := in.clone()
		end := body(&at)
		w.leaves = w.leaves[:len(w.leaves)-1]
		end = merge(append(pointers(l.nexts), end)...)
		if end != nil {
			end = post(end)
		}
		return *merge(s, end), l
	}
	w.silent++
	for range 3 {
		out, _ := round()
		if out = join(in, out); out.equal(in) {
			break
		}
		in = out
	}
	w.silent--
	out, l := round()
	places := pointers(l.ends)
	if ends {
		places = append(places, &out)
	}
	return merge(places...)
}

// clauses follows the cases of a switch or select.
func (w *flow) clauses(label string, body *ast.BlockStmt, s *state) *state {
	l := &leave{label: label}
	w.leaves = append(w.leaves, l)
	var ends []*state
	all := false // one of the cases is taken
	var through *state
	for _, n := range body.List {
		at := s.clone()
		var stmts []ast.Stmt
		switch n := n.(type) {
		case *ast.CaseClause:
			for _, e := range n.List {
				w.expr(e, at)
			}
			all = all || n.List == nil
			stmts = n.Body
		case *ast.CommClause:
			w.stmt(n.Comm, &at, "")
			all = true
			stmts = n.Body
		}
		falls := false
		if k := len(stmts); k > 0 {
			b, ok := stmts[k-1].(*ast.BranchStmt)
			falls = ok && b.Tok == token.FALLTHROUGH
		}
		end := w.list(stmts, merge(&at, through))
		if through = nil; falls {
			through, end = end, nil
		}
		ends = append(ends, end)
	}
	w.leaves = w.leaves[:len(w.leaves)-1]
	if !all {
		ends = append(ends, s)
	}
	return merge(append(ends, pointers(l.ends)...)...)
}

func (w *flow) branch(n *ast.BranchStmt, s *state) *state {
	if n.Tok == token.FALLTHROUGH {
		return s
	}
	for _, l := range slices.Backward(w.leaves) {
		switch {
		case n.Label != nil && n.Label.Name != l.label:
		case n.Tok == token.BREAK:
			l.ends = append(l.ends, s.clone())
			return nil
		case n.Tok == token.CONTINUE && l.loop:
			l.nexts = append(l.nexts, s.clone())
			return nil
		}
	}
	return nil // a goto, which nobody uses
}

// expr follows an expression, whose calls change s.
func (w *flow) expr(n ast.Node, s state) {
	if n == nil {
		return
	}
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			w.literal(n, nil, false)
			return false
		case *ast.CallExpr:
			w.call(n, s, false, false)
			return false
		case *ast.UnaryExpr: // what has its address taken may be touched where that is used
			if sel, ok := n.X.(*ast.SelectorExpr); ok && n.Op == token.AND {
				w.expr(sel.X, s)
				return false
			}
		case *ast.SelectorExpr:
			w.use(n, s)
		}
		return true
	})
}

func (w *flow) use(sel *ast.SelectorExpr, s state) {
	if w.silent == 0 {
		w.c.use(sel, w.h, s)
	}
}

// call follows a call, now, at the end of the function, or by itself.
func (w *flow) call(n *ast.CallExpr, s state, late, alone bool) {
	c := w.c
	f := c.callee(n)
	if lit, ok := ast.Unparen(n.Fun).(*ast.FuncLit); ok {
		w.literal(lit, nil, alone)
	} else if sel, ok := n.Fun.(*ast.SelectorExpr); ok {
		at := s
		switch {
		case late:
			at = w.h.anywhere()
		case alone:
			at = state{depth: map[*types.Var]int{}}
		}
		w.expr(sel.X, s)
		w.use(sel, at)
	} else {
		w.expr(n.Fun, s)
	}
	for _, a := range n.Args {
		if lit, ok := a.(*ast.FuncLit); ok {
			w.literal(lit, f, f != nil && (f.Name() == "AfterFunc" || f.Name() == "Go"))
			continue
		}
		w.expr(a, s)
	}
	if late || alone {
		return
	}
	w.noteOrder(n, f, s)
	w.effect(n, s)
}

// effect applies to s what a call takes and gives back.
func (w *flow) effect(n *ast.CallExpr, s state) {
	c, f := w.c, w.c.callee(n)
	if m := c.mutexOf(n, takers...); m != nil {
		s.add(m, 1)
	}
	if m := c.mutexOf(n, "Unlock", "RUnlock"); m != nil {
		s.add(m, -1)
	}
	for _, m := range c.takes[f] {
		s.add(m, 1)
	}
	for _, m := range c.gives[f] {
		s.add(m, -1)
	}
}

// callee returns the function that is called, if that is known.
func (c *lockChecker) callee(n *ast.CallExpr) *types.Func {
	var id *ast.Ident
	switch fun := ast.Unparen(n.Fun).(type) {
	case *ast.SelectorExpr:
		id = fun.Sel
	case *ast.Ident:
		id = fun
	default:
		return nil
	}
	f, _ := c.info.Uses[id].(*types.Func)
	if f != nil {
		f = f.Origin()
	}
	return f
}

// literal looks at a function within another.
func (w *flow) literal(lit *ast.FuncLit, givenTo *types.Func, alone bool) {
	switch {
	case w.silent > 0:
	case alone:
		w.c.scope(lit.Body, held{}, map[*types.Var]string{})
	default:
		in := w.h
		in.inside, in.mus = true, maps.Clone(w.h.mus)
		for _, m := range w.c.locks[givenTo] {
			in.mus[m] = true
		}
		w.c.scope(lit.Body, in, maps.Clone(w.bases))
	}
}

// begin returns what a function holds when it begins, given what it may hold. A mutex that it
// takes before it gives it back is not held yet.
func (c *lockChecker) begin(body *ast.BlockStmt, h held) state {
	s := h.anywhere()
	if !h.locked {
		for m := range s.depth {
			if !h.outer[m] {
				s.depth[m] = 0
			}
		}
	}
	seen := map[*types.Var]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if m := c.mutexOf(call, takers...); m != nil && !seen[m] {
				seen[m], s.depth[m] = true, 0
			}
			if m := c.mutexOf(call, "Unlock", "RUnlock"); m != nil {
				seen[m] = true
			}
			if f := c.callee(call); f != nil {
				for _, m := range c.takes[f] {
					if !seen[m] {
						seen[m], s.depth[m] = true, 0
					}
				}
				for _, m := range c.gives[f] {
					seen[m] = true
				}
			}
		}
		_, lit := n.(*ast.FuncLit)
		return !lit
	})
	return s
}

// takers are the methods that take a mutex.
var takers = []string{"Lock", "RLock", "TryLock", "TryRLock"}
