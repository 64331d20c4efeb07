package ikematrix

// factor is one setting of a case, with the values that it takes.
type factor struct {
	name   string
	values []string
	get    func(*Case) *string
}

// tuple is a choice of values for some factors, by their indexes; -1: open.
type tuple []int

// cover returns cases that have every pair of values of every two factors in some case,
// and every combination of values of the factors in strong. Cases for which conflict
// returns true (it also gets cases with open settings) are left out; what could not be
// covered for that reason is returned as well. The algorithm is greedy and
// deterministic.
func cover(factors []factor, strong []int, conflict func(*Case) bool) (cases []Case, left []Case) {
	g := &generator{factors: factors, conflict: conflict, seen: map[[4]int]int{}}
	for _, t := range g.products(strong) {
		g.row(t)
	}
	for a := range factors {
		for b := a + 1; b < len(factors); b++ {
			for _, t := range g.products([]int{a, b}) {
				if g.seen[pairOf(a, t[a], b, t[b])] == 0 {
					g.row(t)
				}
			}
		}
	}
	return g.cases, g.left
}

type generator struct {
	factors  []factor
	conflict func(*Case) bool
	seen     map[[4]int]int // how often a pair is in a case
	cases    []Case
	left     []Case
}

func pairOf(a, x, b, y int) [4]int {
	if a > b {
		a, x, b, y = b, y, a, x
	}
	return [4]int{a, x, b, y}
}

// products are all choices of values for these factors.
func (g *generator) products(of []int) []tuple {
	open := make(tuple, len(g.factors))
	for i := range open {
		open[i] = -1
	}
	all := []tuple{open}
	for _, f := range of {
		var next []tuple
		for _, t := range all {
			for v := range g.factors[f].values {
				n := append(tuple(nil), t...)
				n[f] = v
				next = append(next, n)
			}
		}
		all = next
	}
	return all
}

// row completes a tuple to a case, with the values that cover most.
func (g *generator) row(t tuple) {
	if g.conflict(g.caseOf(t)) {
		g.left = append(g.left, *g.caseOf(t))
		return
	}
	if !g.complete(t) {
		g.left = append(g.left, *g.caseOf(t))
		return
	}
	for a, x := range t {
		for b := a + 1; b < len(t); b++ {
			g.seen[pairOf(a, x, b, t[b])]++
		}
	}
	g.cases = append(g.cases, *g.caseOf(t))
}

// complete fills the open factors of t in their order with the values that make most
// new pairs, or else the rarest ones. It backtracks where a choice leaves no value for
// a later factor.
func (g *generator) complete(t tuple) bool {
	open := -1
	for i, v := range t {
		if v < 0 {
			open = i
			break
		}
	}
	if open < 0 {
		return true
	}
	tried := make([]bool, len(g.factors[open].values))
	for range tried {
		best, gain, stale := -1, 0, 0
		for v := range tried {
			if tried[v] {
				continue
			}
			fresh, seen := 0, 0
			for i, x := range t {
				if x < 0 {
					continue
				}
				n := g.seen[pairOf(i, x, open, v)]
				if seen += n; n == 0 {
					fresh++
				}
			}
			if best < 0 || fresh > gain || fresh == gain && seen < stale {
				best, gain, stale = v, fresh, seen
			}
		}
		tried[best] = true
		t[open] = best
		if !g.conflict(g.caseOf(t)) && g.complete(t) {
			return true
		}
		t[open] = -1
	}
	return false
}

func (g *generator) caseOf(t tuple) *Case {
	c := &Case{}
	for i, v := range t {
		if v >= 0 {
			*g.factors[i].get(c) = g.factors[i].values[v]
		}
	}
	return c
}

// eachValueOnce chooses cases that have every value of every factor that the cases
// have, each time the one with the most values not yet covered.
func eachValueOnce(factors []factor, cases []Case) (chosen []Case) {
	type value struct{ factor, value string }
	have := map[value]bool{}
	values := func(c *Case, f func(value)) {
		for _, x := range factors {
			f(value{x.name, *x.get(c)})
		}
	}
	for {
		best, most := -1, 0
		for i := range cases {
			fresh := 0
			values(&cases[i], func(v value) {
				if !have[v] {
					fresh++
				}
			})
			if fresh > most {
				best, most = i, fresh
			}
		}
		if best < 0 {
			return chosen
		}
		values(&cases[best], func(v value) { have[v] = true })
		chosen = append(chosen, cases[best])
	}
}
