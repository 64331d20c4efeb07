package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestImportsPointDownOnly(t *testing.T) {
	p := func(dir string, imports ...string) pkg {
		q := pkg{ImportPath: module + "/" + dir}
		for _, i := range imports {
			q.Imports = append(q.Imports, module+"/"+i)
		}
		return q
	}
	cases := map[string]struct {
		pkg  pkg
		want string
	}{
		"down":                    {p("verbs", "rdmap", "ddp", "internal/sockio"), ""},
		"up":                      {p("ddp", "verbs"), "imports verbs"},
		"beside":                  {p("mpa", "ddp/sctpadapt"), "imports ddp/sctpadapt"},
		"within one entry":        {p("rtrs", "rtrs/wire"), ""},
		"below an entry, up":      {p("rtrs/wire", "daemon"), "imports daemon"},
		"own entry under another": {p("ddp/sctpadapt", "ddp"), ""},
		"tools, from anywhere":    {p("verbs", "internal/tools/lint"), ""},
		"tools import nothing":    {p("internal/tools/lint", "internal/sockio"), "imports internal/sockio"},
		"integration imports all": {p("integration/lab", "daemon", "ipsec"), ""},
		"nobody imports it":       {p("daemon", "integration/lab"), "imports integration/lab"},
		"unlisted":                {p("surprise"), "is in no layer"},
		"other modules":           {pkg{ImportPath: module + "/ddp", Imports: []string{"fmt", "golang.org/x/sys/unix"}}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { expect(t, checkImports([]pkg{c.pkg}), c.want) })
	}
}

func TestLayersWithoutPackagesAreFound(t *testing.T) {
	var all []pkg
	for _, group := range layers {
		for _, e := range group {
			all = append(all, pkg{ImportPath: module + "/" + e})
		}
	}
	expect(t, checkLayers(all), "")
	expect(t, checkLayers(all[1:]), "layers.go: names "+layers[0][0])
}

func TestTheMapFollowsTheLayers(t *testing.T) {
	var rows []string
	for _, group := range layers {
		rows = append(rows, "| `"+strings.Join(group, "`, `")+"` | it has `ddp.LLP` | |")
	}
	table := func() []byte { return []byte(strings.Join(rows, "\n")) }
	expect(t, checkMap("map.md", table()), "")
	rows[4], rows[5] = rows[5], rows[4]
	upper, lower := layers[4][0], layers[5]
	expect(t, checkMap("map.md", table()), "map.md:6: "+upper+" stands below "+lower[len(lower)-1]+", which it may import")
	rows[4], rows[5], rows[0] = rows[5], rows[4], "| prose |"
	expect(t, checkMap("map.md", table()), "is missing from the table of packages")
}

// RFC 5042 section 5.4.2: TLS can't protect RDMAP, neither under nor over it.
func TestNothingLayersTLS(t *testing.T) {
	for _, dir := range []string{"transport", "mpa", "verbs", "daemon"} {
		for _, imp := range []string{"crypto/tls", "crypto/tls/fipsonly", "github.com/refraction-networking/utls", "github.com/pion/dtls/v3", "example.org/go-tls"} {
			expect(t, checkImports([]pkg{{ImportPath: module + "/" + dir, Imports: []string{imp}}}), dir+": imports "+imp)
		}
		expect(t, checkImports([]pkg{{ImportPath: module + "/" + dir, Imports: []string{"example.org/atlas", "net/http"}}}), "")
	}
	t.Chdir("../../..")
	all, err := listImports()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Errorf("the module has %d packages", len(all))
	}
	for _, f := range checkImports(all) {
		t.Error(f)
	}
}

// expect fails unless there is exactly one finding that contains want, or none
// if want is empty.
func expect(t *testing.T, found []finding, want string) {
	t.Helper()
	switch {
	case want == "" && len(found) > 0:
		t.Errorf("unexpected findings: %v", found)
	case want != "" && (len(found) != 1 || !strings.Contains(found[0].String(), want)):
		t.Errorf("got %v, want one finding with %q", found, want)
	}
}

func TestLongFilesAreFound(t *testing.T) {
	expect(t, checkLength("a.go", []byte(strings.Repeat("\n", maxLines))), "")
	expect(t, checkLength("a.go", []byte(strings.Repeat("\n", maxLines+1))), "801 lines")
}

func TestSkipsNeedReasonsAndTestsDoNotSleep(t *testing.T) {
	cases := map[string]string{
		`t.Skip("needs root")`:        "",
		`t.Skipf("needs %s", "root")`: "",
		`t.Skip()`:                    "says why",
		`t.SkipNow()`:                 "says why",
		`t.Skip("")`:                  "says why",
		`time.Sleep(1)`:               "not for the clock",
		`list.Skip()`:                 "",
	}
	for call, want := range cases {
		t.Run(call, func(t *testing.T) {
			src := "package p\nfunc TestX(t *testing.T) {\n\t" + call + "\n}\n"
			expect(t, checkTest("x_test.go", []byte(src)), want)
		})
	}
}

const rootHelp = `NAME:
   ironwarp - secure block link

COMMANDS:
   daemon   run the daemon
   peer     peers
   attach   attach a remote disk
   help, h  Shows a list of commands or help for one command

GLOBAL OPTIONS:
   --socket FILE  control socket (default: "/run/x")
   --help, -h     show help
`

const peerHelp = `NAME:
   ironwarp peer - peers

COMMANDS:
   people:
     add      add one
     rm, del  remove one
   help, h  Shows help

OPTIONS:
   --help, -h  show help
`

const addHelp = `NAME:
   ironwarp peer add - add one

OPTIONS:
   --psk-file FILE, -p FILE  read the secret from FILE
   --json                    for programs
   --help, -h                show help
`

func testDocs() *docChecker {
	help := map[string]string{"": rootHelp, "peer": peerHelp, "peer add": addHelp, "attach": "OPTIONS:\n   --help, -h  x\n"}
	return &docChecker{
		commands: askHelp(func(path []string) (string, error) {
			if h, ok := help[strings.Join(path, " ")]; ok {
				return h, nil
			}
			return "", errors.New("no such command")
		}),
		targets: makeTargets([]byte("GO ?= go\n.PHONY: x\nbuild: need-go ## b\n\tgo build\ntest:\n")),
		tests:   map[string][]string{"TestPlacement": {"ddp"}, "FuzzParse": {"ipsec", "integration/oracle"}},
		exists:  func(p string) bool { return p == "docs/a.md" },
	}
}

func TestDocumentsNameWhatExists(t *testing.T) {
	cases := map[string]struct{ doc, want string }{
		"known command":         {"run `ironwarp peer add beta`", ""},
		"alias":                 {"`ironwarp peer del beta`", ""},
		"unknown command":       {"run `ironwarp pear add`", "'ironwarp pear'"},
		"unknown subcommand":    {"`ironwarp peer adopt`", "'ironwarp peer adopt'"},
		"alternatives":          {"`ironwarp peer add|rm|steal`", "'ironwarp peer steal'"},
		"flag":                  {"`ironwarp peer add --psk-file f beta`", ""},
		"flag with =":           {"`ironwarp peer add --psk-file=f beta`", ""},
		"short flag":            {"`ironwarp peer add -p f beta`", ""},
		"unknown flag":          {"`ironwarp peer add --psk f beta`", "--psk of"},
		"unknown trailing flag": {"`ironwarp peer add beta --psk f`", "--psk of"},
		"global flag, value":    {"`ironwarp --socket peer daemon`", ""},
		"in a fence":            {"```sh\nsudo ./bin/ironwarp peer adopt\n```", "'ironwarp peer adopt'"},
		"behind a pipe":         {"```\nhead -c 32 x | ironwarp peer adopt\n```", "'ironwarp peer adopt'"},
		"continued line":        {"```\nironwarp peer \\\n  adopt\n```", "'ironwarp peer adopt'"},
		"in a namespace":        {"```\nip netns exec a ironwarp peer adopt\n```", "'ironwarp peer adopt'"},
		"other languages":       {"```go\nironwarp peer adopt\n```", ""},
		"comment":               {"```\nironwarp attach beta/docs  # ironwarp is great\n```", ""},
		"prose":                 {"ironwarp peer adopt is prose", ""},
		"make target":           {"`make build test`", ""},
		"make variable":         {"`make test PKG=./ddp`", ""},
		"unknown make target":   {"`make coffee`", "'make coffee'"},
		"test":                  {"`TestPlacement`", ""},
		"test of a package":     {"`ddp.TestPlacement`, `oracle.FuzzParse`", ""},
		"unknown test":          {"`TestEverything`", "TestEverything"},
		"test elsewhere":        {"`mpa.TestPlacement`", "mpa.TestPlacement"},
		"part of a name":        {"`erator.FuzzParse`", "erator.FuzzParse"},
		"link":                  {"[a](docs/a.md#part)", ""},
		"broken link":           {"[b](docs/b.md)", "docs/b.md"},
		"web link":              {"[b](https://example.org/x)", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { expect(t, testDocs().check("README.md", []byte(c.doc)), c.want) })
	}
}

func TestFoldersThatAnIndexLacksAreFound(t *testing.T) {
	files := []string{"a/README.md", "a/x/x.go", "a/y/y.go", "a/y/z.go", "a/y/raw/r.go", "a/data/notes.txt", "b/b.go"}
	got := checkIndex("a/README.md", []byte("| [x](x) | [r](y/raw) |"), files)
	if len(got) != 1 || got[0].text != "y is missing" {
		t.Errorf("%v", got)
	}
}

func TestTestsAreFound(t *testing.T) {
	src := "package p\n\nfunc TestA(t *testing.T) {}\nfunc (x T) TestB() {}\n// func TestC(\nfunc FuzzD(f *testing.F) {}\nfunc Testing() {}\n"
	if got := testNames([]byte(src)); !slices.Equal(got, []string{"TestA", "FuzzD"}) {
		t.Errorf("found %v", got)
	}
}

func TestLinksAreRelativeToTheirDocument(t *testing.T) {
	expect(t, testDocs().check("docs/b.md", []byte("[a](a.md)")), "")
	expect(t, testDocs().check("bench/b.md", []byte("[a](a.md)")), "a.md")
}

func TestHelpThatFailsIsAnError(t *testing.T) {
	d := testDocs()
	d.check("README.md", []byte("`ironwarp daemon --config x`"))
	if d.commands.err == nil {
		t.Error("a program that gives no help was taken as proof")
	}
}
