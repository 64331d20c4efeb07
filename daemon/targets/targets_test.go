package targets

import (
	"slices"
	"testing"
)

// What is to be waited for before storage is closed is in a list that who equips a LUN looks at, too.
func TestStillOpenLeavesItsListAlone(t *testing.T) {
	open := make(chan struct{})
	over := make(chan struct{})
	close(over)
	list := []<-chan struct{}{over, open}
	was := slices.Clone(list)
	if got := stillOpen(list); !slices.Equal(got, []<-chan struct{}{open}) {
		t.Errorf("%v are open, not %v alone", got, open)
	}
	if !slices.Equal(list, was) {
		t.Errorf("the list has become %v", list)
	}
}
