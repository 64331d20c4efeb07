package ikematrix

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// Ask is something that ipsec.Manager does not ask strongSwan for, because strongSwan
// or the data plane lacks it. The test asks strongSwan directly, to show that the
// Manager rejects nothing that would work.
type Ask struct {
	What  string
	Case  Case
	ESP   string // the proposal as it goes to strongSwan; "": the case's
	Words string // of strongSwan
}

// Asked is what became of an Ask.
type Asked struct {
	What     string `json:"what"`
	IKE      string `json:"ike"`
	Words    string `json:"words"`
	Surprise string `json:"surprise,omitempty"`
}

func asksOf(plane esp.Plane) []Ask {
	all := []Ask{
		{What: "AES-GCM in phase 1", Case: Case{Exchange: main1, Suite: "aes128gcm16-prfsha256"}, Words: "no acceptable ENCRYPTION_ALGORITHM found"},
		{What: "ChaCha20-Poly1305", Case: Case{Exchange: main1, ESP: "chacha20poly1305"}, Words: "NO_PROPOSAL_CHOSEN"},
	}
	if plane != esp.Userland {
		return all
	}
	for _, x := range []string{ikeV2, main1} {
		all = append(all,
			Ask{What: "transport mode", Case: Case{Exchange: x, Mode: modeTransport}, Words: "IPsec SA: unsupported mode"},
			Ask{What: "AES-GMAC", Case: Case{Exchange: x, ESP: "aes128gmac"}, Words: "unsupported AEAD algorithm NULL_AES_GMAC"},
			Ask{What: "ESN", Case: Case{Exchange: x}, ESP: "aes128gcm16-ecp256-esn", Words: "IPsec SA: ESN not supported"},
		)
	}
	return all
}

// asks runs what is asked of strongSwan directly.
func (r *Report) asks(t *testing.T, m *matrix, port uint16) {
	for _, a := range asksOf(m.plane) {
		a.Case = a.Case.withDefaults()
		res := Asked{What: a.What, IKE: a.Case.Exchange, Words: a.Words}
		t.Run("asked-of-strongSwan/"+strings.ReplaceAll(a.What+","+a.Case.Exchange, " ", "-"), func(t *testing.T) {
			from := []charonSays{m.alpha.listen(), m.beta.listen()}
			err := m.ask(t.Context(), &a, port)
			var heard []string
			for _, f := range from {
				heard = append(heard, f.lines()...)
			}
			switch {
			case err == nil:
				res.Surprise = "strongSwan does it, and ipsec.Manager leaves it out"
			case !strings.Contains(strings.Join(heard, "\n"), a.Words):
				res.Surprise = fmt.Sprintf("refused without the words %q: %v", a.Words, err)
			}
			if res.Surprise != "" {
				t.Error(res.Surprise)
				logTail(t, "strongSwan", heard)
			}
		})
		r.Asked = append(r.Asked, res)
	}
}

const askName = "asked"

// ask has both strongSwans load the case's connection, and one of them bring up a
// child. Nothing is sent over it.
func (m *matrix) ask(ctx context.Context, a *Ask, port uint16) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := &a.Case
	here, there := m.alpha.at(c), m.beta.at(c)
	idA, idB := c.identities(here.String(), there.String())
	p, err := c.profile()
	if err != nil {
		return err
	}
	proposal := p.ESP[0]
	if a.ESP != "" {
		proposal = a.ESP
	}
	key := string(auth.GenerateSecret().Reveal())
	encap, version := "no", "1"
	if m.plane == esp.Userland {
		encap = "yes"
	}
	if c.Exchange == ikeV2 {
		version = "2"
	}
	var first *vici.Session
	for _, e := range []struct {
		h                *host
		local, remote    string
		localID, otherID string
		localTS, otherTS string
	}{
		{m.alpha, here.String(), there.String(), idA, idB, fmt.Sprintf("%v/32[6]", here), fmt.Sprintf("%v/32[6/%d]", there, port)},
		{m.beta, there.String(), here.String(), idB, idA, fmt.Sprintf("%v/32[6/%d]", there, port), fmt.Sprintf("%v/32[6]", here)},
	} {
		s, err := vici.NewSession(vici.WithDialContext(func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", e.h.ViciSocket())
		}))
		if err != nil {
			return fmt.Errorf("ask strongSwan on %s: %w", e.h.Name(), err)
		}
		defer s.Close()
		defer func() {
			_, err1 := s.Call(ctx, "unload-conn", message("name", askName))
			_, err2 := s.Call(ctx, "unload-shared", message("id", askName))
			err = errors.Join(err, err1, err2)
		}()
		if first == nil {
			first = s
		}
		if _, err := s.Call(ctx, "load-shared", message("id", askName, "type", "IKE", "data", key, "owners", []string{idA, idB})); err != nil {
			return fmt.Errorf("load-shared on %s: %w", e.h.Name(), err)
		}
		child := message("local_ts", []string{e.localTS}, "remote_ts", []string{e.otherTS}, "esp_proposals", []string{proposal}, "mode", c.Mode)
		conn := message("version", version, "local_addrs", []string{e.local}, "remote_addrs", []string{e.remote}, "proposals", p.IKE,
			"encap", encap, "mobike", "no", "keyingtries", "1", "local-1", message("auth", "psk", "id", e.localID),
			"remote-1", message("auth", "psk", "id", e.otherID), "children", message(askName, child))
		if _, err := s.Call(ctx, "load-conn", message(askName, conn)); err != nil {
			return fmt.Errorf("load-conn on %s: %w", e.h.Name(), err)
		}
	}
	_, refused := first.Call(ctx, "initiate", message("ike", askName, "child", askName, "timeout", fmt.Sprint(patience.Milliseconds())))
	_, err = first.Call(ctx, "terminate", message("ike", askName, "force", "yes", "timeout", "1000"))
	if refused == nil {
		return err
	}
	return refused
}

func message(kv ...any) *vici.Message {
	m := vici.NewMessage()
	for i := 0; i+1 < len(kv); i += 2 {
		if err := m.Set(kv[i].(string), kv[i+1]); err != nil {
			panic("ikematrix: a VICI message: " + err.Error())
		}
	}
	return m
}
