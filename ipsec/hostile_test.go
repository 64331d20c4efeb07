package ipsec

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// packet frames the body of a VICI packet.
func packet(kind byte, name string, body []byte) []byte {
	b := []byte{kind}
	if name != "" {
		b = append(append(b, byte(len(name))), name...)
	}
	b = append(b, body...)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// nested is a message of sections within each other.
func nested(depth int) []byte {
	return append(bytes.Repeat([]byte{viciSection, 1, 'a'}, depth), bytes.Repeat([]byte{viciSectionEnd}, depth)...)
}

// saying is a charon that answers a registration and a command with these bytes.
// After the latter it closes the connection, or leaves it open.
func saying(registered, answer []byte, stay bool) net.Conn {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		for {
			var head [4]byte
			if _, err := io.ReadFull(theirs, head[:]); err != nil {
				return
			}
			body := make([]byte, binary.BigEndian.Uint32(head[:]))
			if _, err := io.ReadFull(theirs, body); err != nil {
				return
			}
			reply := answer
			if body[0] == viciRegister {
				reply = registered
			}
			if _, err := theirs.Write(reply); err != nil || body[0] == viciRequest && !stay {
				return
			}
		}
	}()
	return ours
}

var confirmed = packet(5, "", nil)

// listFrom asks such a charon for its SAs.
func listFrom(ctx context.Context, answer []byte, stay bool) ([]SA, error) {
	c, err := newViciConn(saying(confirmed, answer, stay), "test")
	if err != nil {
		return nil, err
	}
	defer c.close()
	if err := c.subscribe(ctx, "list-sa"); err != nil {
		return nil, err
	}
	return listSAs(ctx, c, "")
}

func TestMalformedAnswersAreRefusedInWords(t *testing.T) {
	ok := packet(1, "", nil)
	for _, tc := range []struct {
		name   string
		answer []byte
		words  string
	}{
		{"200,000 nested sections", packet(7, "list-sa", nested(200_000)), "nested sections"},
		{"an unknown packet type", packet(99, "", nil), "unknown type"},
		{"an unknown element", packet(1, "", []byte{9}), "unknown type 9"},
		{"the end of a section that never began", packet(1, "", []byte{viciSectionEnd}), "unknown type 2"},
		{"a section that does not end", packet(1, "", []byte{viciSection, 1, 'a'}), "ends too early"},
		{"a list that does not end", packet(1, "", []byte{viciList, 1, 'a'}), "ends too early"},
		{"a value beyond the packet", packet(1, "", []byte{viciKeyValue, 1, 'a', 0xff, 0xff, 'b'}), "ends too early"},
		{"a key beyond the packet", packet(1, "", []byte{viciKeyValue, 200, 'a'}), "ends too early"},
		{"a section in a list", packet(1, "", []byte{viciList, 1, 'a', viciSection, 1, 'b', viciSectionEnd, viciListEnd}), "within a list"},
		{"a name beyond the packet", packet(7, "", []byte{200, 'l'}), "ends too early"},
		{"a packet of no bytes", make([]byte, 4), "0 bytes"},
		{"an event that is cut", packet(7, "list-sa", tree{{"beta", tree{{"state", "ESTABLISHED"}}}}.encode(nil))[:20], "lost"},
		{"no answer at all", nil, "lost"},
		{"events and no answer", bytes.Repeat(packet(7, "list-sa", nil), 10), "lost"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			_, err := listFrom(ctx, tc.answer, false)
			var de *DaemonError
			if !errors.As(err, &de) || !strings.Contains(err.Error(), tc.words) {
				t.Fatalf("error %v, want a DaemonError with %q", err, tc.words)
			}
			if tc.words != "lost" && !errors.Is(err, ErrDaemonProtocol) || tc.words == "lost" && !errors.Is(err, ErrDaemonGone) {
				t.Errorf("error %v is of the wrong kind", err)
			}
		})
	}
	if _, err := listFrom(t.Context(), ok, true); err != nil {
		t.Errorf("an empty list: %v", err)
	}
}

func TestListWithoutEndIsCutOff(t *testing.T) {
	kids := tree{}
	for i := range 200 {
		kids = append(kids, pair{fmt.Sprint("c", i), tree{{"name", "c"}, {"state", "INSTALLED"}}})
	}
	one := packet(7, "list-sa", tree{{"x", tree{{"state", "ESTABLISHED"}, {"child-sas", kids}}}}.encode(nil))
	answer := append(bytes.Repeat(one, maxListed/200+2), packet(1, "", nil)...)
	sas, err := listFrom(t.Context(), answer, true)
	if !errors.Is(err, ErrDaemonProtocol) || !strings.Contains(err.Error(), fmt.Sprint(maxListed)) {
		t.Errorf("%d SAs, error %v", len(sas), err)
	}
}

func TestEventsBeforeARegistrationIsConfirmedAreBounded(t *testing.T) {
	c, err := newViciConn(saying(bytes.Repeat(packet(7, "ike-updown", nil), maxHeld+10), nil, true), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := c.subscribe(ctx, "ike-updown"); !errors.Is(err, ErrDaemonProtocol) {
		t.Errorf("error %v, want %v", err, ErrDaemonProtocol)
	}
}

// FuzzAnswersOfCharon takes charon for a hostile peer: whatever it sends, a list
// comes back or an error that says what is wrong, and no child that covers
// something without a selector that says so.
func FuzzAnswersOfCharon(f *testing.F) {
	p := testPeer("beta", 2)
	for _, body := range [][]byte{nil, saOf(p, "beta-out", "beta-in").encode(nil), nested(3), tree{{"a", []string{"b", "c"}}}.encode(nil)} {
		f.Add(append(packet(7, "list-sa", body), packet(1, "", nil)...))
	}
	f.Add(packet(1, "", tree{{"success", "no"}, {"errmsg", "no"}}.encode(nil)))
	f.Add([]byte{0, 0, 0, 1, 7})
	f.Fuzz(func(t *testing.T, answer []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		sas, err := listFrom(ctx, answer, false)
		if errors.Is(err, ErrDaemonHangs) {
			t.Fatalf("it hung: %v", err)
		}
		for i := range sas {
			_ = p.owns(&sas[i])
			for _, c := range sas[i].Children {
				if covers(c.LocalTS, c.RemoteTS, flowTo(p)) && (len(c.LocalTS) == 0 || len(c.RemoteTS) == 0) {
					t.Errorf("a child without selectors covers a flow: %+v", c)
				}
			}
		}
		_, _, _ = judge(&p, "beta-out", flowTo(p), sas)
	})
}

// FuzzEventsOfCharon hands over events of any name and content, as if charon had
// sent them.
func FuzzEventsOfCharon(f *testing.F) {
	p := testPeer("beta", 2)
	f.Add("child-updown", tree{{"up", "yes"}, {"beta", saOf(p, "beta-out")[0].value}}.encode(nil))
	f.Add("child-rekey", tree{{"beta", tree{{"child-sas", tree{{"beta-out", tree{{"old", tree{}}, {"new", tree{}}}}}}}}}.encode(nil))
	f.Add("ike-updown", tree{{"beta", tree{{"uniqueid", "1"}}}}.encode(nil))
	f.Add("log", tree{{"ikesa-name", "beta"}, {"msg", "received DELETE for IKE_SA beta[1"}}.encode(nil))
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		if len(name) == 0 || len(name) > 255 {
			return
		}
		m, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		m.peers["beta"] = newPeer(m, p)
		c, err := newViciConn(saying(confirmed, append(packet(7, name, body), packet(1, "", nil)...), false), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.subscribe(ctx, name); err != nil {
			return
		}
		if _, err := c.call(ctx, "version", "charon", nil, m.viciEvent); errors.Is(err, ErrDaemonHangs) {
			t.Fatalf("it hung: %v", err)
		}
	})
}
