package conf

import (
	"os"
	"strings"
	"testing"
)

// docs/fabric.md has each option with its default, and no other.
func TestDocumentHasEachOption(t *testing.T) {
	text, err := os.ReadFile("../../docs/fabric.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	inTable := false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			inTable = false
			continue
		}
		if strings.TrimSpace(cells[1]) == "option" {
			inTable = true
			continue
		}
		if name := strings.Trim(cells[1], " `"); inTable && !strings.HasPrefix(name, "-") {
			if _, again := documented[name]; again {
				t.Errorf("%s is there twice", name)
			}
			documented[name] = strings.TrimSpace(cells[2])
		}
	}
	for _, o := range options {
		def := o.def
		if def == noValue {
			def = "none"
		}
		if documented[o.name] != def {
			t.Errorf("docs/fabric.md has %q for the default of %s, which is %s", documented[o.name], o.name, def)
		}
		if o.alias != "" && !strings.Contains(string(text), "`"+o.alias+"`") {
			t.Errorf("docs/fabric.md does not have %s", o.alias)
		}
		delete(documented, o.name)
	}
	for name := range documented {
		t.Errorf("docs/fabric.md has an option %s, which does not exist", name)
	}
}
