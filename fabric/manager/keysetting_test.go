package manager

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// Whatever key and level a port has, it gets the key fields if the manager knows its key, or the port shows it;
// with answers that are lost as well. Otherwise it keeps what it has.
func TestKeySetting(t *testing.T) {
	keys := rapid.SampledFrom([]mad.Key{0, 1, 2, 3})
	fields := func(t *rapid.T, name string) agent.KeyFields {
		return agent.KeyFields{MKey: keys.Draw(t, name), Protect: uint8(rapid.IntRange(0, 3).Draw(t, "level")), LeasePeriod: uint16(rapid.IntRange(0, 1).Draw(t, "period"))}
	}
	var set, locked int
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000_000, 0)
		has, want := fields(t, "has"), fields(t, "want")
		a, err := agent.New(agent.Config{GUID: 0x42, Keys: has})
		if err != nil {
			t.Fatal(err)
		}
		candidates := rapid.SliceOfN(keys, 1, 3).Draw(t, "candidates")
		opens := has.MKey == 0 || has.Protect == 0 || has.MKey == want.MKey
		for _, k := range candidates {
			opens = opens || k == has.MKey
		}
		lost := rapid.IntRange(0, 6).Draw(t, "answer that is lost")
		s := NewKeySetting(0x42, candidates, want)
		requests := 0
		for request, ok := s.Next(); ok; request, ok = s.Next() {
			requests++
			r := a.Handle(now, beta, &request)
			if r.Answer != nil && (requests != lost || request.Method != mad.MethodSet) {
				s.Answer(r.Answer)
			} else {
				s.Silent()
			}
			if requests > 10 {
				t.Fatal("it has no end")
			}
		}
		done, err := s.Done()
		switch {
		case !done:
			t.Fatal("not done")
		case opens && (err != nil || a.Keys() != want):
			t.Fatalf("%v: the port has %#x %v, wanted %#x %v", err, uint64(a.Keys().MKey), a.Keys(), uint64(want.MKey), want)
		case !opens && (!errors.Is(err, ErrPortLocked) || a.Keys() != has):
			t.Fatalf("%v: the port has %v", err, a.Keys())
		}
		if opens {
			set++
		} else {
			locked++
		}
	})
	if set == 0 || locked == 0 {
		t.Errorf("%d ports were set, %d locked", set, locked)
	}
}

func TestKeySettingThatIsRefused(t *testing.T) {
	want := agent.KeyFields{MKey: ourM, Protect: 2}
	a, err := agent.New(agent.Config{GUID: 0x42, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	s := NewKeySetting(0x42, []mad.Key{0}, want)
	for request, ok := s.Next(); ok; request, ok = s.Next() {
		if stray := request.Answer(mad.StatusInvalidField); true {
			stray.TransactionID++
			s.Answer(&stray) // to something else
		}
		s.Answer(a.Handle(time.Time{}, beta, &request).Answer)
	}
	if _, err := s.Done(); !errors.Is(err, ErrPortRefused) || !strings.Contains(err.Error(), "0x0000000000000042") {
		t.Error(err)
	}
	// A host that says OK and does nothing.
	s = NewKeySetting(0x42, []mad.Key{0}, want)
	for request, ok := s.Next(); ok; request, ok = s.Next() {
		yes := request.Answer(mad.StatusOK)
		s.Answer(&yes)
	}
	if _, err := s.Done(); !errors.Is(err, ErrPortRefused) {
		t.Error(err)
	}
	// One that answers questions alone.
	a, err = agent.New(agent.Config{GUID: 0x42, Keys: agent.KeyFields{MKey: ourM}})
	if err != nil {
		t.Fatal(err)
	}
	s = NewKeySetting(0x42, []mad.Key{ourM}, want)
	requests := 0
	for request, ok := s.Next(); ok && requests < 100; request, ok = s.Next() {
		if requests++; request.Method == mad.MethodSet {
			s.Silent()
		} else {
			s.Answer(a.Handle(time.Time{}, beta, &request).Answer)
		}
	}
	if done, err := s.Done(); !done || !errors.Is(err, ErrPortLocked) {
		t.Error(done, err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x"} {
		hidden := struct{ s *KeySetting }{s}
		for _, text := range []string{fmt.Sprintf(verb, s), fmt.Sprintf(verb, hidden)} {
			if strings.Contains(text, fmt.Sprintf("%x", uint64(ourM))) || strings.Contains(text, fmt.Sprintf("%d", uint64(ourM))) {
				t.Errorf("a key is in %q", text)
			}
		}
	}
}

// SMInfo through a host's agent: the M_Key decides whether a manager is answered, and told the sm_key.
func TestSMInfoThroughTheAgent(t *testing.T) {
	for _, tc := range []struct {
		from    agent.Requester
		level   uint8
		key     mad.Key
		answers bool
		told    mad.Key
	}{
		{beta, 0, ourM, true, ourKey}, {beta, 0, rivalKey, true, 0}, {beta, 1, rivalKey, true, 0}, {beta, 1, ourM, true, ourKey},
		{beta, 2, rivalKey, false, 0}, {beta, 2, ourM, true, ourKey}, {beta, 3, 0, false, 0},
		{impostor, 0, ourM, true, 0}, {stranger, 2, ourM, true, 0}, {stranger, 3, rivalKey, true, 0},
	} {
		c := standby(t)
		a, err := agent.New(agent.Config{GUID: 0xa, Keys: agent.KeyFields{MKey: ourM, Protect: tc.level, LeasePeriod: 1}, SM: c.m})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(method mad.Method) *mad.SMP {
			request := mad.SMP{MKey: tc.key, Header: mad.Header{Class: mad.ClassSubn, ClassVersion: 1, Method: method, Attribute: mad.AttrSMInfo, Modifier: mad.SMHandover}}
			request.Data = sminfo(mad.SMInfo{GUID: tc.from.GUID, SMKey: ourKey, State: mad.SMMaster})
			return a.Handle(c.now, tc.from, &request).Answer
		}
		r := ask(mad.MethodGet)
		if (r != nil) != tc.answers {
			t.Errorf("%+v: %+v", tc, r)
		}
		if r != nil {
			if info, err := mad.ParseSMInfo(r.Data[:mad.SMInfoLen]); err != nil || info.SMKey != tc.told || info.State != mad.SMStandby {
				t.Errorf("%+v: %#x %s", tc, uint64(info.SMKey), info.State)
			}
		}
		if !tc.from.Manager && a.Violations() != 0 {
			t.Errorf("%+v: a question of who is no manager is a violation", tc)
		}
		ask(mad.MethodSet)
		if taken := c.m.State() == mad.SMMaster; taken != (tc.from.Manager && tc.key == ourM) {
			t.Errorf("%+v: HANDOVER, and now %s", tc, c.m.State())
		}
	}
}
