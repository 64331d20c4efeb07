package main

import (
	"cmp"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// takings is what functions take while they run, in the functions that they call as well.
type takings struct {
	all map[*types.Func]map[*types.Var]bool // of any value
	own map[*types.Func]map[*types.Var]bool // of the receiver
}

// order is that one mutex is taken while another is held.
type order struct{ held, taken *types.Var }

// noteTakings finds what each function takes before it returns. What it takes in goroutines
// that it starts does not count, nor what it takes again after it has given it back.
func (c *lockChecker) noteTakings(all []*ast.FuncDecl) {
	c.taken = takings{map[*types.Func]map[*types.Var]bool{}, map[*types.Func]map[*types.Var]bool{}}
	calls, ownCalls := map[*types.Func][]*types.Func{}, map[*types.Func][]*types.Func{}
	for _, fn := range all {
		f := c.info.Defs[fn.Name].(*types.Func)
		c.taken.all[f], c.taken.own[f] = map[*types.Var]bool{}, map[*types.Var]bool{}
		if needsLock(fn.Name.Name) || isFree(fn) {
			continue
		}
		self, made := receiver(fn), c.gather(fn.Body, held{}).made
		c.eachCall(fn.Body, func(call *ast.CallExpr) {
			sel, _ := call.Fun.(*ast.SelectorExpr)
			if m := c.mutexOf(call, takers...); m != nil && !made[m] && !c.isQuiet(call.Pos()) {
				c.taken.all[f][m] = true
				c.taken.own[f][m] = c.taken.own[f][m] || self != "" && baseOf(sel.X) == self
			} else if g := c.callee(call); g != nil {
				calls[f] = append(calls[f], g)
				if sel != nil && self != "" && types.ExprString(sel.X) == self {
					ownCalls[f] = append(ownCalls[f], g)
				}
			}
		})
	}
	spread(c.taken.all, calls)
	spread(c.taken.own, ownCalls)
}

// spread adds to what functions take what those take that they call.
func spread(taken map[*types.Func]map[*types.Var]bool, calls map[*types.Func][]*types.Func) {
	for again := true; again; {
		again = false
		for f, l := range calls {
			n := len(taken[f])
			for _, g := range l {
				maps.Copy(taken[f], taken[g])
			}
			again = again || len(taken[f]) > n
		}
	}
}

// eachCall visits the calls of a function, but not those of goroutines that it starts.
func (c *lockChecker) eachCall(body ast.Node, visit func(*ast.CallExpr)) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.GoStmt:
			return false
		case *ast.CallExpr:
			visit(n)
		}
		return true
	})
}

// receiver returns the name of a method's receiver, or "".
func receiver(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List[0].Names) == 0 {
		return ""
	}
	return fn.Recv.List[0].Names[0].Name
}

// baseOf returns the value of which a mutex is.
func baseOf(mutex ast.Expr) string {
	if sel, ok := ast.Unparen(mutex).(*ast.SelectorExpr); ok {
		return types.ExprString(sel.X)
	}
	return types.ExprString(mutex)
}

// noteOrder looks at what a call takes while s is held.
func (w *flow) noteOrder(n *ast.CallExpr, f *types.Func, s state) {
	c := w.c
	if w.silent > 0 || w.h.free || c.isQuiet(n.Pos()) {
		return
	}
	sel, _ := n.Fun.(*ast.SelectorExpr)
	takes := c.taken.all[f]
	if m := c.mutexOf(n, "Lock", "RLock"); m != nil {
		takes = map[*types.Var]bool{m: true}
		w.bases[m] = baseOf(sel.X)
	}
	if sel != nil {
		for m, does := range c.taken.own[f] {
			if does && s.of(m) > w.unsure.of(m) && w.bases[m] == types.ExprString(sel.X) {
				c.complain(n.Pos(), "%s takes %s, which is held", types.ExprString(sel), m.Name())
			}
		}
	}
	for m := range takes {
		for h, d := range s.depth {
			if o := (order{h, m}); d > w.unsure.of(h) && h != m && !w.h.made[m] && !w.h.made[h] && !slices.Contains(c.gives[f], h) && !c.orders[o].IsValid() {
				c.orders[o] = n.Pos()
			}
		}
	}
}

var (
	// saysOrder is how the comment on a mutex says in which order it is taken.
	saysOrder = regexp.MustCompile(`\btaken (before|after)\b|\binnermost\b|\boutermost\b`)
	// ordersAll is how a comment says so for a package. T stands for T.mu. What is not named is
	// innermost.
	ordersAll = regexp.MustCompile(`\bLock order: ([\w.]+(?:,\s+[\w.]+)*)`)
)

// ranks returns the places of mutexes in the order of their package, which may be none.
func (c *lockChecker) ranks(files []*ast.File) map[*types.Var]int {
	byName := map[string]*types.Var{}
	for m, t := range c.within {
		byName[t+"."+m.Name()] = m
	}
	ranks := map[*types.Var]int{}
	for _, f := range files {
		for _, g := range f.Comments {
			all := ordersAll.FindStringSubmatch(g.Text())
			if all == nil {
				continue
			}
			for _, name := range strings.Split(all[1], ",") {
				name = strings.Trim(name, " \n.")
				m := cmp.Or(byName[name], byName[name+".mu"])
				if m == nil {
					c.complain(g.Pos(), "there is no mutex %s", name)
				}
				ranks[m] = len(ranks) + 1
			}
		}
	}
	return ranks
}

// checkOrders complains of mutexes that are taken in both orders, in another than their
// comments or their package's say, and where nothing says which it is.
func (c *lockChecker) checkOrders(files []*ast.File) {
	ranks, next := c.ranks(files), map[*types.Var][]*types.Var{}
	for o := range c.orders {
		next[o.held] = append(next[o.held], o.taken)
	}
	byPlace := func(a, b order) int { return cmp.Compare(c.orders[a], c.orders[b]) }
	for _, o := range slices.SortedFunc(maps.Keys(c.orders), byPlace) {
		pos := c.orders[o]
		held, taken := ranks[o.held], ranks[o.taken]
		says := func(m *types.Var, what string) bool {
			return strings.Contains(c.said[m], what) && !ordersAll.MatchString(c.said[m])
		}
		switch {
		case reaches(next, o.taken, o.held, map[*types.Var]bool{}):
			c.complain(pos, "%s is taken while %s is held, and elsewhere it is the other way round", c.nameOf(o.taken), c.nameOf(o.held))
		case held > 0 && taken > 0 && held > taken, says(o.held, "innermost"), says(o.taken, "outermost"):
			c.complain(pos, "%s is taken while %s is held: comments say otherwise", c.nameOf(o.taken), c.nameOf(o.held))
		case held == 0 && !saysOrder.MatchString(c.said[o.held]) && !saysOrder.MatchString(c.said[o.taken]):
			c.complain(pos, "%s is taken while %s is held: no comment says in which order", c.nameOf(o.taken), c.nameOf(o.held))
		}
	}
}

// reaches reports whether one can go from a to b.
func reaches(next map[*types.Var][]*types.Var, a, b *types.Var, seen map[*types.Var]bool) bool {
	if a == b {
		return true
	}
	if seen[a] {
		return false
	}
	seen[a] = true
	return slices.ContainsFunc(next[a], func(n *types.Var) bool { return reaches(next, n, b, seen) })
}

func (c *lockChecker) nameOf(m *types.Var) string {
	if t := c.within[m]; t != "" {
		return t + "." + m.Name()
	}
	return m.Name()
}

// isQuiet reports whether a line is exempt.
func (c *lockChecker) isQuiet(pos token.Pos) bool {
	p := c.fset.Position(pos)
	return c.quiet[p.Filename][p.Line]
}
