package spelling

import "testing"

func TestClosest(t *testing.T) {
	words := []string{"m_key", "m_key_protection", "m_key_lease_period"}
	for word, want := range map[string]string{
		"mkey": "m_key", "m_key_protecion": "m_key_protection", "m_key_leaseperiod": "m_key_lease_period", "routing_engine": "", "": "",
	} {
		if got := Closest(word, words); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	if got := Closest("m_key", nil); got != "" {
		t.Errorf("%q of no words", got)
	}
}
