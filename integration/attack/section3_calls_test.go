package attack

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/verbs"
)

// handles are what a consumer is given.
var handles = []reflect.Type{
	reflect.TypeFor[*verbs.ULP](), reflect.TypeFor[*verbs.PD](), reflect.TypeFor[*verbs.CQ](), reflect.TypeFor[*verbs.SRQ](),
	reflect.TypeFor[*verbs.QP](), reflect.TypeFor[*verbs.MR](), reflect.TypeFor[*verbs.MW](), reflect.TypeFor[*verbs.ConnRequest](),
}

// named lists what of an argument of type t is a handle or an STag of ours, by its
// path.
func named(t reflect.Type, path string) (all []string) {
	switch {
	case slices.Contains(handles, t):
		if path == "" || strings.HasSuffix(path, "SGL") {
			path = strings.TrimSpace(path + " " + t.Elem().Name())
		}
		return []string{path}
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice:
		return named(t.Elem(), path)
	case t.Kind() == reflect.Uint32 && path == "InvalidateSTag": // RemoteSTag is the peer's
		return []string{path}
	case t.Kind() == reflect.Struct && t.PkgPath() == handles[0].Elem().PkgPath():
		for f := range t.Fields() {
			if f.IsExported() {
				p := f.Name
				if path == "SGL" {
					p = path
				}
				all = append(all, named(f.Type, p)...)
			}
		}
	}
	return all
}

// The attacks cover every call that there is.
func TestEveryCallThatNamesAnObjectIsAttacked(t *testing.T) {
	attacked := map[string]bool{
		"CQ.Poll QP":            true, // a result
		"ConnRequest.Accept PD": true, // a request belongs to no consumer until one accepts it with a domain of its own
	}
	for _, x := range thefts() {
		attacked[x.call] = true
	}
	var missing []string
	for _, h := range handles {
		for m := range h.Methods() {
			for i := 1; i < m.Type.NumIn(); i++ {
				for _, what := range named(m.Type.In(i), "") {
					call := h.Elem().Name() + "." + m.Name + " " + what
					if !attacked[call] {
						missing = append(missing, call)
					}
					delete(attacked, call)
				}
			}
		}
	}
	slices.Sort(missing)
	for _, call := range slices.Compact(missing) {
		t.Errorf("nothing attacks %s", call)
	}
}

// From the handles that a consumer has no method leads to the device, to another
// consumer, or to the administrator's view (R1).
func TestHandlesLeadToNothingPrivileged(t *testing.T) {
	privileged := []reflect.Type{reflect.TypeFor[*verbs.Device](), reflect.TypeFor[*verbs.Listener](), reflect.TypeFor[verbs.Resources](), reflect.TypeFor[verbs.StreamInfo](), reflect.TypeFor[verbs.Event]()}
	for _, h := range handles {
		for m := range h.Methods() {
			for i := range m.Type.NumOut() {
				out := m.Type.Out(i)
				for out.Kind() == reflect.Slice {
					out = out.Elem()
				}
				if slices.Contains(privileged, out) {
					t.Errorf("%v.%s returns a %v", h, m.Name, out)
				}
			}
		}
	}
}
