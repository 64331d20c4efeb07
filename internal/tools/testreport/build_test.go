package main

import (
	"reflect"
	"testing"
)

// Go builds no two test binaries of one name at once: without groups none of all packages was built.
func TestPackagesOfOneNameAreBuiltApart(t *testing.T) {
	got := distinct([]string{"m/fabric/agent", "m/ddp", "m/iwarptest/agent", "m/agent", "m/verbs"})
	want := [][]string{{"m/fabric/agent", "m/ddp", "m/verbs"}, {"m/iwarptest/agent"}, {"m/agent"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("groups %q, want %q", got, want)
	}
}
