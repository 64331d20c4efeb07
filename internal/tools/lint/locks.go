package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	// What the comment on a mutex says. It guards the fields down to the next empty line, and
	// those whose comment, or that of their struct, says "guarded by T.mu".
	guards   = "guards the fields below it"
	unlocked = "// unlocked: " // in a line, or the comment of a function, that needs no lock for the reason that follows
	locked   = "Locked"        // ends the name of a function whose caller holds the lock
	unlocks  = "AndUnlock"     // ends the name of one that then unlocks
)

// checkLocks finds fields that are touched and functions that are called without the mutex
// that guards them, mutexes of which nobody says what they guard, and two that are taken in an
// order that nobody has written down (lockorder.go). It follows the statements of each function
// (lockflow.go), and knows what functions of the same package do that are called directly. It
// does not see of which value of the type a mutex is, and takes functions within a function
// to run while its locks are held.
func checkLocks() ([]finding, error) {
	pkgs, imp, err := listTyped("./...")
	if err != nil {
		return nil, err
	}
	top, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	var found []finding
	for _, p := range pkgs {
		dir, err := filepath.Rel(top, p.Dir)
		if err != nil {
			return nil, err
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			src, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				return nil, err
			}
			f, err := parser.ParseFile(fset, path.Join(filepath.ToSlash(dir), name), src, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
		f, err := locksOf(fset, p.ImportPath, files, imp)
		if err != nil {
			return nil, err
		}
		found = append(found, f...)
	}
	return found, nil
}

// typed is the part of `go list -export -json` that the check needs.
type typed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
}

// listTyped lists packages, and has an importer of what they import.
func listTyped(patterns ...string) (pkgs []typed, imp types.Importer, err error) {
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly"}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("go list: %w", err)
	}
	exports := make(map[string]string)
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p typed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, nil, fmt.Errorf("go list: %w", err)
		}
		if exports[p.ImportPath] = p.Export; !p.DepOnly {
			pkgs = append(pkgs, p)
		}
	}
	return pkgs, importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }), nil
}

// lockChecker looks at one package. A mutex is known by its field.
type lockChecker struct {
	fset  *token.FileSet
	info  types.Info
	found []finding

	guard  map[*types.Var]*types.Var      // of a field
	owned  map[*types.TypeName]*types.Var // what guards all of a struct
	locks  map[*types.Func][]*types.Var   // what functions lock
	takes  map[*types.Func][]*types.Var   // what they hold when they return
	gives  map[*types.Func][]*types.Var   // what only their callers have locked, and they unlock
	taken  takings
	orders map[order]token.Pos     // where one is taken while another is held
	said   map[*types.Var]string   // the comments on fields
	within map[*types.Var]string   // the name of the struct
	quiet  map[string]map[int]bool // lines that are exempt
}

func locksOf(fset *token.FileSet, name string, files []*ast.File, imp types.Importer) ([]finding, error) {
	c := &lockChecker{
		fset:  fset,
		info:  types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}, Types: map[ast.Expr]types.TypeAndValue{}},
		guard: map[*types.Var]*types.Var{}, owned: map[*types.TypeName]*types.Var{}, locks: map[*types.Func][]*types.Var{}, takes: map[*types.Func][]*types.Var{}, gives: map[*types.Func][]*types.Var{}, said: map[*types.Var]string{}, within: map[*types.Var]string{}, orders: map[order]token.Pos{}, quiet: map[string]map[int]bool{},
	}
	conf := types.Config{Importer: imp}
	pkg, err := conf.Check(name, fset, files, &c.info)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		c.exempt(f)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GenDecl:
				if n.Tok == token.TYPE && len(n.Specs) == 1 {
					spec := n.Specs[0].(*ast.TypeSpec)
					if s, ok := spec.Type.(*ast.StructType); ok {
						all := c.other(n.Doc, pkg)
						c.layout(s, pkg, all)
						for v := range c.info.Defs[spec.Name].Type().Underlying().(*types.Struct).Fields() {
							c.within[v] = spec.Name.Name
						}
						c.owned[c.info.Defs[spec.Name].(*types.TypeName)] = all
						return false
					}
				}
			case *ast.StructType:
				c.layout(n, pkg, nil)
			}
			return true
		})
	}
	var all []*ast.FuncDecl
	for _, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				all = append(all, fn)
			}
		}
	}
	c.noteTakes(all)
	c.noteTakings(all)
	for _, fn := range all {
		h := held{free: isFree(fn), locked: needsLock(fn.Name.Name), mus: map[*types.Var]bool{}}
		if mu := c.ownerHeldBy(c.info.Defs[fn.Name].(*types.Func)); mu != nil {
			h.mus[mu] = true
		}
		bases := map[*types.Var]string{}
		if m := c.onlyMutex(fn); m != nil && h.locked {
			h.mus[m], bases[m] = true, receiver(fn)
		}
		c.scope(fn.Body, h, bases)
	}
	c.checkOrders(files)
	return c.found, nil
}

// isFree reports whether a function needs no lock.
func isFree(fn *ast.FuncDecl) bool {
	_, reason, ok := strings.Cut(fn.Doc.Text(), unlocked[len("// "):])
	return fn.Name.Name == "init" || ok && reason != ""
}

func (c *lockChecker) complain(pos token.Pos, format string, args ...any) {
	if p := c.fset.Position(pos); !c.isQuiet(pos) {
		c.found = append(c.found, finding{p.Filename, p.Line, fmt.Sprintf(format, args...)})
	}
}

func (c *lockChecker) exempt(f *ast.File) {
	for _, g := range f.Comments {
		for _, l := range g.List {
			if reason, ok := strings.CutPrefix(l.Text, unlocked); ok && reason != "" {
				p := c.fset.Position(l.Pos())
				if c.quiet[p.Filename] == nil {
					c.quiet[p.Filename] = map[int]bool{}
				}
				c.quiet[p.Filename][p.Line] = true
			}
		}
	}
}

var guardedBy = regexp.MustCompile(`\bguarded by (\w+)\.(\w+)`)

// other returns the mutex of another struct that a comment names, or nil.
func (c *lockChecker) other(g *ast.CommentGroup, pkg *types.Package) *types.Var {
	m := guardedBy.FindStringSubmatch(g.Text())
	if m == nil {
		return nil
	}
	if o := pkg.Scope().Lookup(m[1]); o != nil {
		s := structOf(o.Type())
		for i := 0; s != nil && i < s.NumFields(); i++ {
			if v := s.Field(i); v.Name() == m[2] && isSync(v.Type(), "Mutex", "RWMutex") {
				return v
			}
		}
	}
	c.complain(g.Pos(), "there is no mutex %s.%s", m[1], m[2])
	return nil
}

// layout notes which fields of a struct are guarded, by a mutex above them, by one that their
// comment names, or by that of all.
func (c *lockChecker) layout(s *ast.StructType, pkg *types.Package, all *types.Var) {
	var mu *types.Var
	last := 0
	for _, f := range s.Fields.List {
		begin := f.Pos()
		if f.Doc != nil {
			begin = f.Doc.Pos()
		}
		if c.fset.Position(begin).Line > last+1 {
			mu = nil
		}
		last = c.fset.Position(f.End()).Line
		isMutex := isSync(c.info.Types[f.Type].Type, "Mutex", "RWMutex")
		said := f.Doc.Text() + f.Comment.Text()
		names := f.Names
		if len(names) == 0 {
			names = []*ast.Ident{embedded(f.Type)}
		}
		for _, name := range names {
			v := c.info.Defs[name].(*types.Var)
			c.said[v] = said
			switch {
			case isMutex && said == "":
				c.complain(name.Pos(), "%s: say what the mutex guards: \"%s\", or what it is held for", name.Name, guards)
			case isMutex && name.Name == "mu" && !strings.Contains(said, guards):
				c.complain(name.Pos(), "mu: say in its comment that it \"%s\"", guards)
			case isMutex && strings.Contains(said, guards):
				mu = v
			case isMutex:
				mu = nil
			case isSync(v.Type()):
			default:
				for _, by := range []*types.Var{c.other(f.Comment, pkg), c.other(f.Doc, pkg), mu, all} {
					if by != nil {
						c.guard[v] = by
						break
					}
				}
			}
		}
		if in, ok := f.Type.(*ast.StructType); ok {
			c.layout(in, pkg, nil)
		}
	}
}

// embedded returns the name of an embedded field.
func embedded(t ast.Expr) *ast.Ident {
	switch t := t.(type) {
	case *ast.StarExpr:
		return embedded(t.X)
	case *ast.SelectorExpr:
		return t.Sel
	case *ast.IndexExpr:
		return embedded(t.X)
	}
	return t.(*ast.Ident)
}

// structOf returns the struct that t is or points to, or nil.
func structOf(t types.Type) *types.Struct {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	s, _ := t.Underlying().(*types.Struct)
	return s
}

// isSync reports whether a type is one of sync's or sync/atomic's, of those names if there are any.
func isSync(t types.Type, names ...string) bool {
	n, _ := types.Unalias(t).(*types.Named)
	if n == nil || n.Obj().Pkg() == nil {
		return false
	}
	from := n.Obj().Pkg().Path()
	if len(names) == 0 {
		return from == "sync" || from == "sync/atomic"
	}
	for _, name := range names {
		if from == "sync" && n.Obj().Name() == name {
			return true
		}
	}
	return false
}

// mutexOf returns the field whose method, such as Lock, is called.
func (c *lockChecker) mutexOf(call *ast.CallExpr, methods ...string) *types.Var {
	sel, _ := call.Fun.(*ast.SelectorExpr)
	if sel == nil {
		return nil
	}
	if !slices.Contains(methods, sel.Sel.Name) {
		return nil
	}
	if x, ok := ast.Unparen(sel.X).(*ast.SelectorExpr); ok && c.info.Selections[x] != nil && isSync(c.info.Types[x].Type, "Mutex", "RWMutex") {
		return c.info.Selections[x].Obj().(*types.Var).Origin()
	}
	if s := c.info.Selections[sel]; s != nil && len(s.Index()) > 1 { // of an embedded one
		if v := fieldsTo(s); isSync(v[len(v)-1].Type(), "Mutex", "RWMutex") {
			return v[len(v)-1]
		}
	}
	return nil
}

// fieldsTo returns the fields through which a selection goes, down to what it selects if that
// is a field.
func fieldsTo(s *types.Selection) (fields []*types.Var) {
	path, t := s.Index(), s.Recv()
	if s.Kind() != types.FieldVal {
		path = path[:len(path)-1]
	}
	for _, i := range path {
		v := structOf(t).Field(i).Origin()
		fields, t = append(fields, v), v.Type()
	}
	return fields
}

// noteTakes finds functions that lock, those that leave it to their callers to unlock, and
// those that unlock what their callers have locked.
func (c *lockChecker) noteTakes(all []*ast.FuncDecl) {
	frees := map[*types.Func]map[*types.Var]bool{}
	for _, fn := range all {
		f := c.info.Defs[fn.Name].(*types.Func)
		frees[f] = map[*types.Var]bool{}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if m := c.mutexOf(call, takers...); m != nil {
					c.locks[f] = append(c.locks[f], m)
				}
				if m := c.mutexOf(call, "Unlock", "RUnlock"); m != nil {
					frees[f][m] = true
				}
			}
			return true
		})
	}
	for range 3 { // what functions do that do so by calling others
		for _, fn := range all {
			f := c.info.Defs[fn.Name].(*types.Func)
			taken := slices.Clone(c.locks[f])
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					g := c.callee(call)
					taken = append(taken, c.takes[g]...)
					for _, m := range c.gives[g] {
						frees[f][m] = frees[f][m] || isUnlock(fn.Name.Name) || slices.Contains(c.locks[f], m)
					}
				}
				return true
			})
			c.takes[f], c.gives[f] = c.heldAtEnd(fn), nil
			for m, does := range frees[f] {
				if does && !slices.Contains(taken, m) {
					c.gives[f] = append(c.gives[f], m)
				}
			}
		}
	}
	for _, fn := range all {
		f, name := c.info.Defs[fn.Name].(*types.Func), fn.Name.Name
		if m := c.gives[f]; len(m) > 0 && !isUnlock(name) && !isFree(fn) {
			c.complain(fn.Name.Pos(), "%s unlocks %s, which it has not locked: be called ...%s", name, m[0].Name(), unlocks)
		}
		if m := c.takes[f]; len(m) > 0 && !isLock(name) && !isFree(fn) {
			c.complain(fn.Name.Pos(), "%s returns with %s: be called lock...", name, m[0].Name())
		}
	}
}

// heldAtEnd returns the mutexes that a function has taken and holds when it returns: on every
// way, or on some if its name says so.
func (c *lockChecker) heldAtEnd(fn *ast.FuncDecl) (held []*types.Var) {
	if needsLock(fn.Name.Name) {
		return nil
	}
	w := &flow{c: c, silent: 1, bases: map[*types.Var]string{}}
	w.body(fn.Body, state{depth: map[*types.Var]int{}})
	if len(w.exits) > 0 && !isLock(fn.Name.Name) {
		w.exits = []state{join(w.exits...)}
	}
	for _, s := range w.exits {
		for m, d := range s.depth {
			if d > 0 && !slices.Contains(held, m) {
				held = append(held, m)
			}
		}
	}
	return held
}

// held is what a function holds or need not hold.
type held struct {
	inside bool                // it stands in another, and may run later
	free   bool                // it needs no lock
	locked bool                // its name says that its caller holds what it needs
	outer  map[*types.Var]bool // held when it begins
	mus    map[*types.Var]bool // held anywhere in it
	made   map[*types.Var]bool // fields of what it makes itself
}

// anywhere returns what may be held.
func (h held) anywhere() state {
	s := state{depth: map[*types.Var]int{}}
	for m := range h.mus {
		s.depth[m] = 1
	}
	if h.locked || h.free {
		s.rest = 1
	}
	return s
}

// gather returns what a function in outer may hold, and makes.
func (c *lockChecker) gather(body *ast.BlockStmt, outer held) held {
	h := outer
	h.outer, h.mus, h.made = outer.mus, map[*types.Var]bool{}, map[*types.Var]bool{}
	maps.Copy(h.mus, outer.mus)
	maps.Copy(h.made, outer.made)
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.CallExpr:
			if m := c.mutexOf(n, takers...); m != nil {
				h.mus[m] = true
			}
			for _, m := range c.takes[c.callee(n)] {
				h.mus[m] = true
			}
			if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "new" && len(n.Args) == 1 {
				c.makes(h, n.Args[0])
			}
		case *ast.CompositeLit:
			c.makes(h, n)
		case *ast.ValueSpec:
			if n.Type != nil && len(n.Values) == 0 {
				c.makes(h, n.Type)
			}
		}
		return true
	})
	return h
}

// scope looks at the body of a function. A function in it is thought to run while it does, and
// under the locks of what it is given to, but for one that runs by itself.
func (c *lockChecker) scope(body *ast.BlockStmt, outer held, bases map[*types.Var]string) {
	h := c.gather(body, outer)
	s := c.begin(body, h)
	w := &flow{c: c, h: h, bases: bases}
	if outer.inside {
		w.unsure = s.clone()
	}
	w.body(body, s)
}

func (c *lockChecker) makes(h held, e ast.Expr) {
	if t := c.info.Types[e].Type; t != nil {
		h.makes(structOf(t))
	}
}

func (h held) makes(s *types.Struct) {
	for i := 0; s != nil && i < s.NumFields(); i++ {
		v := s.Field(i).Origin()
		h.made[v] = true
		if in, ok := v.Type().Underlying().(*types.Struct); ok {
			h.makes(in)
		}
	}
}

// makesAll reports whether a struct is among what the function makes.
func (h held) makesAll(s *types.Struct) bool {
	return s != nil && s.NumFields() > 0 && h.made[s.Field(0).Origin()]
}

// needsLock reports whether a function of this name is called with the lock held.
func needsLock(name string) bool {
	return strings.HasSuffix(name, locked) || isUnlock(name)
}

// isLock reports whether a function of this name may return with a lock.
func isLock(name string) bool {
	return strings.HasPrefix(strings.ToLower(strings.TrimPrefix(name, "Try")), "lock")
}

// isUnlock reports whether a function of this name gives the lock back.
func isUnlock(name string) bool {
	return strings.HasSuffix(name, unlocks) || strings.EqualFold(name, "unlock")
}

// onlyMutex returns the mutex of a method's receiver, if it has exactly one.
func (c *lockChecker) onlyMutex(fn *ast.FuncDecl) (m *types.Var) {
	recv := c.info.Defs[fn.Name].(*types.Func).Signature().Recv()
	if recv == nil {
		return nil
	}
	s := structOf(recv.Type())
	for i := 0; s != nil && i < s.NumFields(); i++ {
		if v := s.Field(i).Origin(); isSync(v.Type(), "Mutex", "RWMutex") {
			if m != nil {
				return nil
			}
			m = v
		}
	}
	return m
}

// ownerHeldBy returns the mutex that the callers of a method hold because it guards the whole
// receiver, unless the method takes it itself. It may be nil.
func (c *lockChecker) ownerHeldBy(f *types.Func) *types.Var {
	recv := f.Signature().Recv()
	if recv == nil {
		return nil
	}
	mu := c.owned[typeName(recv.Type())]
	if mu != nil && slices.Contains(c.locks[f.Origin()], mu) {
		return nil
	}
	return mu
}

// typeName returns the name of a type or of what it points to, or nil.
func typeName(t types.Type) *types.TypeName {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := types.Unalias(t).(*types.Named); ok {
		return n.Origin().Obj()
	}
	return nil
}

// use looks at a selector: guarded fields, and a function whose caller holds a lock.
func (c *lockChecker) use(sel *ast.SelectorExpr, h held, now state) {
	s := c.info.Selections[sel]
	if s == nil || h.free {
		return
	}
	covers := func(mu *types.Var) bool { return now.of(mu) > 0 || h.made[mu] }
	for _, v := range fieldsTo(s) {
		if mu := c.guard[v]; mu != nil && !covers(mu) && !h.made[v] {
			c.complain(sel.Sel.Pos(), "%s is touched without %s, which guards it: take it, or be called ...%s", types.ExprString(sel), mu.Name(), locked)
			return
		}
	}
	f, ok := s.Obj().(*types.Func)
	if !ok {
		return
	}
	recv := f.Signature().Recv().Type()
	if mu := c.ownerHeldBy(f); mu != nil && !covers(mu) && !h.makesAll(structOf(recv)) {
		c.complain(sel.Sel.Pos(), "%s is called without %s, which guards %s: take it, or be called ...%s", types.ExprString(sel), mu.Name(), types.ExprString(sel.X), locked)
		return
	}
	if !needsLock(f.Name()) || f.Pkg().Path() == "sync" {
		return
	}
	own := false
	for st, i := structOf(recv), 0; st != nil && i < st.NumFields(); i++ {
		if v := st.Field(i).Origin(); isSync(v.Type(), "Mutex", "RWMutex") {
			own = true
			if covers(v) {
				return
			}
		}
	}
	if own || !now.any() {
		c.complain(sel.Sel.Pos(), "%s is called without its lock: take it, or be called ...%s", types.ExprString(sel), locked)
	}
}
