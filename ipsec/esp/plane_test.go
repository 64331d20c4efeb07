package esp

import "testing"

func TestPlanesDifferWhereTheyHaveTo(t *testing.T) {
	if o := Kernel.Offers(); !o.ESN || !o.Transport || !o.Kernel || o.UDP || !o.HoldsSAs || o.Priority != ChildPriority || o.Priority == 0 {
		t.Errorf("kernel ESP: %+v", o)
	}
	if o := Userland.Offers(); o.ESN || o.Transport || o.Kernel || !o.UDP || o.HoldsSAs || o.Priority != 0 {
		t.Errorf("userland ESP: %+v", o)
	}
}
