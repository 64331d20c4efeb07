package ipsec

import (
	"fmt"
	"strings"
)

// Clause is a setting of a profile and what the RFCs say of it.
type Clause struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
	RFC     string `json:"rfc"`   // such as "RFC 7146 2.2"
	Level   string `json:"level"` // MUST, SHOULD, MAY, MUST NOT, ...
	Text    string `json:"text"`  // what it says
}

// ProfileByName returns a built-in profile, "" being the default one. The error
// wraps ErrProfile and lists the names.
func ProfileByName(name string) (*Profile, error) {
	if name == "" || name == DefaultProfile().Name {
		return DefaultProfile(), nil
	}
	return nil, fmt.Errorf("%w: there is no profile %q: %s are built in", ErrProfile, name, strings.Join(ProfileNames(), ", "))
}

// ProfileNames lists the built-in profiles, the default one first.
func ProfileNames() []string { return []string{DefaultProfile().Name} }

// Clauses lists what the RFCs say of the profile's settings.
func (p *Profile) Clauses() []Clause { return nil }
