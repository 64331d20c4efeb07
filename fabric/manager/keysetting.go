package manager

import (
	"errors"
	"fmt"
	"io"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// What a [KeySetting] may end with.
var (
	// ErrPortLocked means that no known M_Key opens a port, or that the host does not answer.
	ErrPortLocked = errors.New("the port is not opened")
	// ErrPortRefused means that a port's agent does not take the key fields.
	ErrPortRefused = errors.New("the port refuses the key fields")
)

// KeySetting gives one port the key fields that it is to have, whichever of several M_Keys it has now. Its
// states:
//
//	      answer, the key is right          answer
//	asking ──────────────────────▶ setting ──────▶ done
//	 │  ▲                             │  │
//	 │  │ silence, or the key is      │  └ refused: failed
//	 │  │ wrong: the next key         │
//	 │  └──┘  ◀───────────────────────┘ silence: perhaps the answer was lost, so with the new key
//	 └─ no key is left: failed
//
// It sends one SMP at a time, that of Next, and is told the answer, or that none came in time. It is not safe
// for concurrent use.
type KeySetting struct {
	port mad.GUID
	keys **settingKeys // behind two pointers, since package fmt follows one
	next int           // the index of the key to ask with
	set  *mad.PortInfo // what is being set, nil while asking
	// hidden is a PortInfo of level 1 without a key: that is hidden, or there is none. When all keys are wrong,
	// the second is tried, and once more in case the answer is lost.
	hidden *mad.PortInfo
	bare   int // how often it was tried

	sets  int // that were sent
	tid   uint64
	ended bool
	err   error
}

type settingKeys struct {
	candidates []mad.Key // the last is that of want
	right      mad.Key   // of the last answer
	want       agent.KeyFields
}

// NewKeySetting returns a setting of want at a port that has one of the keys of candidates
// (conf.Config.Candidates).
func NewKeySetting(port mad.GUID, candidates []mad.Key, want agent.KeyFields) *KeySetting {
	keys := &settingKeys{want: want}
	for _, k := range candidates {
		if !k.Equal(want.MKey) {
			keys.candidates = append(keys.candidates, k)
		}
	}
	keys.candidates = append(keys.candidates, want.MKey)
	return &KeySetting{port: port, keys: &keys}
}

// Format does not write the keys, whatever the verb.
func (s *KeySetting) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "setting of the M_Key of port "+s.port.String())
}

// Done reports whether it has ended, and how. It fails with [ErrPortLocked] and [ErrPortRefused].
func (s *KeySetting) Done() (bool, error) { return s.ended, s.err }

// Next returns the SMP to send, and false when the setting has ended.
func (s *KeySetting) Next() (mad.SMP, bool) {
	if s.ended {
		return mad.SMP{}, false
	}
	s.tid++
	smp := mad.SMP{Header: mad.Header{
		Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: mad.MethodGet, Attribute: mad.AttrPortInfo, TransactionID: s.tid,
	}}
	k := *s.keys
	if s.set == nil {
		smp.MKey = k.candidates[s.next]
		return smp, true
	}
	s.sets++
	smp.Method, smp.MKey = mad.MethodSet, k.right
	copy(smp.Data[:], s.set.Append(nil))
	return smp, true
}

// Silent is called when no answer has come in time.
func (s *KeySetting) Silent() {
	k := *s.keys
	switch {
	case s.ended:
	case s.sets == maxSets:
		s.end(fmt.Errorf("%w: port %s: %d Sets were not answered", ErrPortLocked, s.port, s.sets))
	case s.set != nil:
		s.set, s.next = nil, len(k.candidates)-1
	default:
		s.tryNext()
	}
}

func (s *KeySetting) tryNext() {
	k := *s.keys
	s.next++
	switch {
	case s.next < len(k.candidates):
	case s.hidden != nil && s.bare < 2:
		k.right = 0
		s.bare++
		s.propose(*s.hidden)
	default:
		s.end(fmt.Errorf("%w: port %s: none of %d M_Keys opens it, or the host is away; it keeps the key that it has", ErrPortLocked, s.port, len(k.candidates)))
	}
}

func (s *KeySetting) end(err error) { s.ended, s.err = true, err }

// Answer is called with what the port's host has sent. What is no answer to the last SMP is ignored.
func (s *KeySetting) Answer(a *mad.SMP) {
	if s.ended || a.Method != mad.MethodGetResp || a.Attribute != mad.AttrPortInfo || a.TransactionID != s.tid {
		return
	}
	info, err := mad.ParsePortInfo(a.Data[:])
	if a.Status != mad.StatusOK || err != nil {
		s.end(fmt.Errorf("%w: port %s: %s", ErrPortRefused, s.port, a.Status))
		return
	}
	k := *s.keys
	if s.set != nil {
		if !has(info, k.want) {
			s.end(fmt.Errorf("%w: port %s: it has others after the Set", ErrPortRefused, s.port))
			return
		}
		s.end(nil)
		return
	}
	asked := k.candidates[s.next]
	switch {
	case info.MKeyProtect == 0: // it is shown, whatever it was asked with
		k.right = info.MKey
	case info.MKeyProtect == 1 && info.MKey == 0:
		s.hidden = &info
		s.tryNext()
		return
	default:
		k.right = asked
	}
	if has(info, k.want) {
		s.end(nil)
		return
	}
	s.propose(info)
}

// propose has the key fields set, and the rest of PortInfo as it is.
func (s *KeySetting) propose(info mad.PortInfo) {
	want := (*s.keys).want
	info.MKey, info.MKeyProtect, info.MKeyLeasePeriod, info.State = want.MKey, want.Protect, want.LeasePeriod, mad.PortNoChange
	s.set = &info
}

func has(info mad.PortInfo, k agent.KeyFields) bool {
	return info.MKey.Equal(k.MKey) && info.MKeyProtect == k.Protect && info.MKeyLeasePeriod == k.LeasePeriod
}
