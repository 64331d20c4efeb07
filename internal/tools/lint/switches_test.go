package main

import "testing"

func TestOnlyWeakenedFilesHaveSwitches(t *testing.T) {
	const imports = "package verbs\n\nimport \"github.com/ironwarp/ironwarp/internal/checks\"\n"
	for _, x := range []struct{ file, src, want string }{
		{"verbs/access.go", imports, "imports internal/checks: have the check in checks.go"},
		{"verbs/access.go", "//go:build weakened\n\n" + imports, "imports internal/checks: have the check in checks.go"},
		{"verbs/weakened.go", imports, "is built into the product"},
		{"verbs/weakened.go", "//go:build !weakened\n\n" + imports, "is built into the product"},
		{"verbs/weakened.go", "//go:build linux\n\n" + imports, "is built into the product"},
		{"verbs/weakened.go", "//go:build weakened\n\n" + imports, ""},
		{"verbs/window_test.go", imports, ""},
		{"verbs/access.go", "package verbs\n", ""},
	} {
		found, err := checkSwitch(x.file, []byte(x.src))
		if err != nil {
			t.Fatal(err)
		}
		expect(t, found, x.want)
	}
}

func TestWeakenedFileIsTheProductWithItsChecksOn(t *testing.T) {
	const product = `package verbs

func (w *window) isOutside(end uint64) bool { return end > w.n || end == 0 }

func draw() uint32 { return random() }

func rest(a, b bool) error {
	if a || !b {
		return nil
	}
	return end()
}
`
	for _, x := range []struct{ weak, want string }{
		{`func (w *window) isOutside(end uint64) bool {
	return (end > w.n || end == 0) && checks.On(checks.Bounds)
}
func draw() uint32 {
	if !checks.On(checks.RandomSTag) {
		return 1
	}
	return random()
}
func rest(a, b bool) error {
	if a || !b || c && !checks.On(checks.Rights) {
		return nil
	}
	return end()
}`, ""},
		{`func (w *window) isOutside(end uint64) bool { return end > w.n || end == 0 && checks.On(checks.Bounds) }
func draw() uint32 {
	if checks.On(checks.RandomSTag) {
		return random()
	} else {
		return 1
	}
}
func rest(a, b bool) error {
	if !checks.On(checks.Rights) || a || !b {
		return nil
	}
	return end()
}`, ""}, // what it does with a check off is its own affair
		{`func (w *window) isOutside(end uint64) bool { return end >= w.n && checks.On(checks.Bounds) }
func draw() uint32 { return random() }
func rest(a, b bool) error {
	if a || !b {
		return nil
	}
	return end()
}`, "*window.isOutside with its checks on is not what checks.go has"},
		{`func (w *window) isOutside(end uint64) bool { return end > w.n || end == 0 }
func rest(a, b bool) error {
	if a || !b {
		return nil
	}
	return end()
}`, "has no switch for draw of checks.go"},
		{`func (w *window) isOutside(end uint64) bool { return end > w.n || end == 0 }
func draw() uint32 { return random() }
func rest(a, b bool) error {
	if a && !b {
		return nil
	}
	return end()
}`, "rest with its checks on is not what checks.go has"},
		{"func", "weakened.go: does not parse"},
	} {
		expect(t, checkTwins("verbs", []byte(product), []byte("package verbs\n\n"+x.weak+"\n")), x.want)
	}
}
