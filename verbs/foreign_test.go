package verbs

import (
	"errors"
	"testing"
)

func TestStreamOfAnotherProcessIsChargedOnce(t *testing.T) {
	dev, err := Open(Config{Limits: Limits{Streams: 8}})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	ulp, err := dev.NewULP("alice", ULPConfig{Quota: Quota{Streams: 2}})
	if err != nil {
		t.Fatal(err)
	}
	first, err := ulp.ChargeStream("beta")
	if err != nil {
		t.Fatal(err)
	}
	second, err := ulp.ChargeStream("gamma")
	if err != nil {
		t.Fatal(err)
	}
	var quota *QuotaError
	if _, err := ulp.ChargeStream("beta"); !errors.As(err, &quota) || quota.Principal != "ULP alice" || quota.Resource != "streams" {
		t.Errorf("a third one: %v", err)
	}
	if err := ulp.Close(); !errors.Is(err, ErrInUse) {
		t.Errorf("close a ULP with streams: %v", err)
	}
	first()
	first()
	if n := ulp.Usage().Streams; n != 1 {
		t.Errorf("%d streams are charged", n)
	}
	for _, p := range dev.Resources().Peers {
		if p.Name == "beta" {
			t.Errorf("a peer without streams has an account: %+v", p)
		}
	}
	second()
	if err := ulp.Close(); err != nil {
		t.Error(err)
	}
	if _, err := ulp.ChargeStream("beta"); !errors.Is(err, ErrClosed) {
		t.Errorf("of a closed one: %v", err)
	}
}
