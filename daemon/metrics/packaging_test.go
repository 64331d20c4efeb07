package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/transport"
)

const (
	rulesFile     = "../../packaging/prometheus/ironwarp.rules.yml"
	dashboardFile = "../../packaging/grafana/ironwarp.json"
)

// fullHost has one of everything that a host can have.
type fullHost struct{}

func (fullHost) Status(context.Context) (st api.Status) {
	fillIn(reflect.ValueOf(&st).Elem())
	st.SAs[0].State = charon.StateInstalled
	st.Peers[0].PathStates[0].Reachable = api.PathReachable
	st.TargetSessions[0].Discovery = false
	return st
}

func (fullHost) Resources() (r api.Resources) {
	fillIn(reflect.ValueOf(&r).Elem())
	r.Device.Kind, r.ULPs[0].Kind, r.Peers[0].Kind = api.PrincipalDevice, api.PrincipalULP, api.PrincipalPeer
	return r
}
func (fullHost) PeerNames() []string                 { return []string{"x"} }
func (fullHost) CountedAs(transport.Identity) string { return "x" }

// fillIn sets every text below v to "x" and every number to 1, and gives every list one element.
func fillIn(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillIn(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1, 0)))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fillIn(v.Field(i))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillIn(v.Index(0))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	}
}

// served are the metrics that a host serves, as Prometheus names their series, with their labels.
func served(t *testing.T) map[string][]string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(Collector(t.Context(), fullHost{}))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{"up": nil}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		if f.GetMetric()[0].GetHistogram() == nil {
			got[f.GetName()] = labels
			continue
		}
		got[f.GetName()+"_sum"], got[f.GetName()+"_count"] = labels, labels
		got[f.GetName()+"_bucket"] = append(slices.Clone(labels), "le")
	}
	return got
}

// The host of these tests has every metric that this package makes: so what they say of dashboards and rules holds for all.
func TestHostWithEverythingHasEveryMetric(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	got := served(t)
	n := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 {
				return true
			}
			prefix, ok := map[string]string{"desc": "ironwarp_", "of": "ironwarp_session_path_"}[fmt.Sprint(call.Fun)]
			text, isText := call.Args[0].(*ast.BasicLit)
			if !ok || !isText {
				return true
			}
			metric, err := strconv.Unquote(text.Value)
			if err != nil {
				t.Fatal(err)
			}
			n++
			if _, ok := got[prefix+metric]; ok {
				return true
			}
			if _, ok := got[prefix+metric+"_bucket"]; !ok {
				t.Errorf("%s: no %s", name, prefix+metric)
			}
			return true
		})
	}
	if n < 70 {
		t.Errorf("%d metrics were looked for", n)
	}
}

// query is a PromQL expression, and where it stands.
type query struct {
	where, expr string
	legend      []string // labels that are shown with its results, or in its annotations
}

var (
	shownLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)
	labelCalls = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
)

// ruleQueries are the expressions of the alert rules.
func ruleQueries(t *testing.T) (all []query) {
	t.Helper()
	data, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	of := regexp.MustCompile(`\$labels\.(\w+)`)
	seen := map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || seen[r.Alert] || r.Expr == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" || !slices.Contains([]string{"warning", "critical"}, r.Labels["severity"]) {
				t.Errorf("rule %q lacks something, or is there twice", r.Alert)
			}
			seen[r.Alert] = true
			q := query{where: "rule " + r.Alert, expr: r.Expr}
			for _, text := range r.Annotations {
				for _, m := range of.FindAllStringSubmatch(text, -1) {
					q.legend = append(q.legend, m[1])
				}
			}
			all = append(all, q)
		}
	}
	return all
}

// dashboardQueries are the expressions of the dashboard, its variables included.
func dashboardQueries(t *testing.T) (all []query) {
	t.Helper()
	data, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Panels []struct {
			ID          int
			Title, Type string
			Targets     []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range file.Panels {
		if ids[p.ID] || p.Title == "" || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q (%d) lacks something, or is there twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		for _, x := range p.Targets {
			q := query{where: "panel " + p.Title, expr: strings.ReplaceAll(x.Expr, "$__rate_interval", "5m")}
			for _, m := range shownLabel.FindAllStringSubmatch(x.LegendFormat, -1) {
				q.legend = append(q.legend, m[1])
			}
			all = append(all, q)
		}
	}
	for _, v := range file.Templating.List {
		if v.Type != "query" {
			continue
		}
		m := labelCalls.FindStringSubmatch(v.Definition)
		if m == nil {
			t.Errorf("variable %s: %q", v.Name, v.Definition)
			continue
		}
		all = append(all, query{where: "variable " + v.Name, expr: m[1], legend: []string{m[2]}})
	}
	return all
}

// words of PromQL that are used, and the labels that Prometheus adds.
var (
	functions   = []string{"rate", "increase", "sum", "max", "min", "avg", "count", "histogram_quantile", "vector", "time", "clamp_min"}
	keywords    = []string{"and", "or", "unless", "bool", "offset"}
	groupings   = []string{"by", "without", "on", "ignoring", "group_left", "group_right"}
	addedLabels = []string{"instance", "job"}
)

var promWord = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|[a-zA-Z_:][a-zA-Z0-9_:]*|\d+(?:\.\d+)?(?:[smhdwy]|ms)?|[-+*/%^(),{}\[\]]|[=!<>~]+|\s+|.`)

// faults are what is wrong with an expression: metrics that there are not, labels that its metrics do not have, words that are none.
func faults(q query, has map[string][]string) (all []string) {
	say := func(format string, a ...any) {
		all = append(all, fmt.Sprintf("%s: ", q.where)+fmt.Sprintf(format, a...)+": "+q.expr)
	}
	var words []string
	for _, w := range promWord.FindAllString(q.expr, -1) {
		if strings.TrimSpace(w) != "" {
			words = append(words, w)
		}
	}
	labels := slices.Clone(addedLabels) // of all metrics of the expression
	metrics := 0
	for _, w := range words {
		labels = append(labels, has[w]...)
	}
	known := func(label string, of []string) {
		if !slices.Contains(of, label) {
			say("no label %s, there are %v", label, of)
		}
	}
	var open []string // what the brackets that are open hold
	pending, metric := "", ""
	for i, w := range words {
		inside := ""
		if len(open) > 0 {
			inside = open[len(open)-1]
		}
		isName := w[0] == '_' || w[0] >= 'a' && w[0] <= 'z' || w[0] >= 'A' && w[0] <= 'Z'
		switch {
		case w == "(" || w == "{" || w == "[":
			open = append(open, w+pending)
			pending = ""
		case w == ")" || w == "}" || w == "]":
			if len(open) == 0 || strings.Index("({[", open[len(open)-1][:1]) != strings.Index(")}]", w) {
				say("the brackets do not match")
				return all
			}
			open = open[:len(open)-1]
		case isName && strings.HasPrefix(inside, "{"):
			known(w, append(slices.Clone(has[metric]), addedLabels...))
		case isName && inside == "(labels":
			known(w, labels)
		case slices.Contains(groupings, w):
			pending = "labels"
		case slices.Contains(functions, w):
			if next := append(words, "", "")[i+1]; next != "(" && !slices.Contains(groupings, next) {
				say("%s is called with nothing", w)
			}
		case isName && !slices.Contains(keywords, w):
			if _, ok := has[w]; !ok {
				say("no metric %s", w)
			}
			metric = w
			metrics++
		}
	}
	if len(open) > 0 {
		say("brackets stay open")
	}
	if metrics == 0 {
		say("it has no metric")
	}
	for _, l := range q.legend {
		known(l, labels)
	}
	return all
}

// Each expression of the dashboard and of the alert rules is about metrics and labels that a host serves.
func TestDashboardAndRulesAreAboutMetricsThatThereAre(t *testing.T) {
	has := served(t)
	all := append(ruleQueries(t), dashboardQueries(t)...)
	if len(all) < 45 {
		t.Errorf("%d expressions", len(all))
	}
	used := map[string]bool{}
	for _, q := range all {
		for _, f := range faults(q, has) {
			t.Error(f)
		}
		for name := range has {
			if strings.Contains(q.expr, name) {
				used[name] = true
			}
		}
	}
	if len(used) < 30 {
		t.Errorf("they use %d metrics only: %v", len(used), slices.Sorted(maps.Keys(used)))
	}
}

// A metric, a label or a word that is wrong is found.
func TestFaultsOfExpressionsAreFound(t *testing.T) {
	has := map[string][]string{"a_total": {"peer"}, "l_bucket": {"disk", "le"}}
	for _, expr := range []string{`a_total`, `rate(a_total{peer="x y {z}",instance=~"$i"}[5m]) > 0`, `sum by (peer, job) (a_total) / on (peer) a_total`, `histogram_quantile(0.9, sum by (le) (rate(l_bucket[5m])))`, `max without (peer) (a_total) == 0 or vector(0)`} {
		if f := faults(query{expr: expr}, has); len(f) > 0 {
			t.Errorf("%v", f)
		}
	}
	for _, expr := range []string{"", "b_total", `a_total{disk="x"}`, `sum by (disk) (a_total)`, `sum(a_total`, `sum(a_total])`, `rote(a_total[5m])`, `vector(0)`, `a_total or b_total`, `l_bucket{peer="x"} + a_total`, `rate`} {
		if len(faults(query{expr: expr}, has)) == 0 {
			t.Errorf("%s: nothing is wrong", expr)
		}
	}
	if len(faults(query{expr: "a_total", legend: []string{"disk"}}, has)) == 0 {
		t.Error("a legend with a label that there is not")
	}
}

// Prometheus takes the rules.
func TestPromtoolTakesTheRules(t *testing.T) {
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool here: it is in Debian's package prometheus")
	}
	if out, err := exec.CommandContext(t.Context(), tool, "check", "rules", rulesFile).CombinedOutput(); err != nil || !strings.Contains(string(out), "SUCCESS") {
		t.Errorf("%v: %s", err, out)
	}
}
