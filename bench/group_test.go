package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func rounds(pairs ...[2]float64) []map[string]metrics {
	var rs []map[string]metrics
	for _, p := range pairs {
		rs = append(rs, map[string]metrics{"us": {"v": p[0]}, "them": {"v": p[1]}})
	}
	return rs
}

func TestRatioIsTheMedianOfTheRoundsRatios(t *testing.T) {
	r := row{name: "x", ours: ref{"us", "v"}, rival: []ref{{"them", "v"}}, aim: 1, scale: 10}
	// The medians are 4 and 4, whose ratio is 1; the rounds' ratios are 0.5, 0.8 and 4.
	got := r.result(rounds([2]float64{2, 4}, [2]float64{4, 5}, [2]float64{4, 1}))
	if *got.Ratio != 0.8 || got.Ours != 40 || *got.Rival != 40 {
		t.Errorf("ours %v, rival %v, ratio %v; want 40, 40, 0.8", got.Ours, *got.Rival, *got.Ratio)
	}
	if *got.Met {
		t.Error("0.8 met an aim of 1.0")
	}
}

func TestRivalIsTheBestOfItsKind(t *testing.T) {
	m := []map[string]metrics{{"us": {"v": 6}, "a": {"v": 3}, "b": {"v": 12}}}
	r := row{ours: ref{"us", "v"}, rival: []ref{{"a", "v"}, {"b", "v"}}}
	if got := r.result(m); *got.Ratio != 0.5 {
		t.Errorf("more is better: ratio %v, want 0.5", *got.Ratio)
	}
	r.less = true
	if got := r.result(m); *got.Ratio != 2 {
		t.Errorf("less is better: ratio %v, want 2", *got.Ratio)
	}
}

func TestAims(t *testing.T) {
	cases := map[string]struct {
		row  row
		ours float64
		met  any
	}{
		"above":          {row{aim: 0.9}, 0.95, true},
		"below":          {row{aim: 0.9}, 0.85, false},
		"less, below":    {row{aim: 1.4, less: true}, 1.3, true},
		"less, above":    {row{aim: 1.4, less: true}, 1.5, false},
		"absolute":       {row{aim: 20, less: true, absolute: true}, 19, true},
		"absolute, none": {row{aim: 0, less: true, absolute: true}, 0.5, false},
		"absolute, zero": {row{aim: 0, less: true, absolute: true}, 0, true},
		"shown":          {row{}, 7, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.row.ours, c.row.rival = ref{"us", "v"}, []ref{{"them", "v"}}
			if c.row.absolute {
				c.row.rival = nil
			}
			got := c.row.result(rounds([2]float64{c.ours, 1}))
			switch {
			case c.met == nil && got.Met != nil:
				t.Errorf("a row without an aim was judged %v", *got.Met)
			case c.met != nil && (got.Met == nil || *got.Met != c.met):
				t.Errorf("met is %v, want %v", got.Met, c.met)
			}
		})
	}
}

func TestContendersTakeTurnsInAlternatingOrder(t *testing.T) {
	var order []string
	g := group{name: "g", rounds: 2, rows: []row{{name: "r", ours: ref{"us", "v"}, rival: []ref{{"them", "v"}}}},
		open: func(_ context.Context, _ *bench, names []string) ([]contender, io.Closer, error) {
			var cs []contender
			for _, n := range names {
				cs = append(cs, contender{n, func(context.Context) (metrics, error) {
					order = append(order, n)
					return metrics{"v": 1}, nil
				}})
			}
			return cs, closers{}, nil
		}}
	if _, err := (&bench{}).run(t.Context(), []group{g}, regexp.MustCompile("")); err != nil {
		t.Fatal(err)
	}
	want := []string{"us", "them", "them", "us", "us", "them"}
	if !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

func TestOnlyRunsTheContendersAskedFor(t *testing.T) {
	var ran []string
	g := group{name: "g", rounds: 1, rows: []row{{name: "r", aim: 2, ours: ref{"us", "v"}, rival: []ref{{"them", "v"}}}, {name: "s", ours: ref{"other", "v"}}},
		open: func(_ context.Context, _ *bench, names []string) ([]contender, io.Closer, error) {
			var cs []contender
			for _, n := range names {
				cs = append(cs, contender{n, func(context.Context) (metrics, error) {
					ran = append(ran, n)
					return metrics{"v": 1}, nil
				}})
			}
			return cs, closers{}, nil
		}}
	rs, err := (&bench{only: regexp.MustCompile("^us$")}).run(t.Context(), []group{g}, regexp.MustCompile(""))
	if err != nil || len(rs) != 1 || rs[0].Ratio != nil || rs[0].Met != nil {
		t.Errorf("results %v, error %v", rs, err)
	}
	if !slices.Equal(ran, []string{"us", "us"}) {
		t.Errorf("ran %q", ran)
	}
	ran = nil
	if rs, err := (&bench{only: regexp.MustCompile("^nobody$")}).run(t.Context(), []group{g}, regexp.MustCompile("")); err != nil || rs != nil || ran != nil {
		t.Errorf("of nobody: %v, %v, ran %q", rs, err, ran)
	}
}

func TestGroupThatFailsDoesNotHideTheOthers(t *testing.T) {
	makeGroup := func(name string, err error) group {
		return group{name: name, rounds: 1, rows: []row{{name: name, ours: ref{"us", "v"}}},
			open: func(context.Context, *bench, []string) ([]contender, io.Closer, error) {
				run := func(context.Context) (metrics, error) { return metrics{"v": 1}, err }
				return []contender{{"us", run}}, closers{}, nil
			}}
	}
	boom := errors.New("boom")
	rs, err := (&bench{}).run(t.Context(), []group{makeGroup("bad", boom), makeGroup("good", nil)}, regexp.MustCompile(""))
	if !errors.Is(err, boom) || len(rs) != 1 || rs[0].Name != "good" {
		t.Errorf("results %v, error %v", rs, err)
	}
}

func TestResultsAsTableAndJSON(t *testing.T) {
	r := row{name: "fast thing", unit: "op/s", ours: ref{"us", "v"}, rival: []ref{{"them", "v"}}, aim: 0.97, note: "how so"}
	results := []result{r.result(rounds([2]float64{1200, 1000})), row{name: "bytes", ours: ref{"us", "v"}}.result(rounds([2]float64{3, 1}))}
	var table bytes.Buffer
	printTable(&table, results)
	for _, want := range []string{"fast thing", "1200", "1.20", ">= 0.97", "met", "shown", "fast thing: how so"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, table.String())
		}
	}
	path := filepath.Join(t.TempDir(), "sub", "latest.json")
	if err := writeJSON(path, results); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var back []map[string]any
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if len(back) != 2 || back[0]["ratio"] != 1.2 || back[0]["met"] != true || back[1]["rival"] != nil || back[1]["aim"] != nil {
		t.Errorf("JSON: %s", b)
	}
}

func TestEveryRowNamesAContenderOnce(t *testing.T) {
	seen := make(map[string]bool)
	for _, g := range groups("old/ironwarp") {
		for _, r := range g.rows {
			if r.name == "" || r.unit == "" || seen[r.name] {
				t.Errorf("%s: row %q has no name or unit, or stands twice", g.name, r.name)
			}
			seen[r.name] = true
		}
	}
}
