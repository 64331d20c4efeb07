package charon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon/charontest"
)

// within and value encode a section and a value.
func within(name string, body []byte) []byte {
	return append(append(append([]byte{elementSection, byte(len(name))}, name...), body...), elementSectionEnd)
}

func value(key, v string) []byte {
	return append(append(append([]byte{elementKeyValue, byte(len(key))}, key...), 0, byte(len(v))), v...)
}

// listFrom asks such a charon for its SAs.
func listFrom(ctx context.Context, answer []byte, stay bool) ([]SA, error) {
	c, err := NewConn(charontest.Saying(charontest.Confirmed, answer, stay), "test")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.Subscribe(ctx, "list-sa"); err != nil {
		return nil, err
	}
	return ListSAs(ctx, c, "")
}

func TestMalformedAnswersAreRefusedInWords(t *testing.T) {
	ok := charontest.Packet(1, "", nil)
	for _, tc := range []struct {
		name   string
		answer []byte
		words  string
	}{
		{"200,000 nested sections", charontest.Packet(7, "list-sa", charontest.Nested(200_000)), "nested sections"},
		{"an unknown packet type", charontest.Packet(99, "", nil), "unknown type"},
		{"an unknown element", charontest.Packet(1, "", []byte{9}), "unknown type 9"},
		{"the end of a section that never began", charontest.Packet(1, "", []byte{elementSectionEnd}), "unknown type 2"},
		{"a section that does not end", charontest.Packet(1, "", []byte{elementSection, 1, 'a'}), "ends too early"},
		{"a list that does not end", charontest.Packet(1, "", []byte{elementList, 1, 'a'}), "ends too early"},
		{"a value beyond the packet", charontest.Packet(1, "", []byte{elementKeyValue, 1, 'a', 0xff, 0xff, 'b'}), "ends too early"},
		{"a key beyond the packet", charontest.Packet(1, "", []byte{elementKeyValue, 200, 'a'}), "ends too early"},
		{"a section in a list", charontest.Packet(1, "", []byte{elementList, 1, 'a', elementSection, 1, 'b', elementSectionEnd, elementListEnd}), "within a list"},
		{"a name beyond the packet", charontest.Packet(7, "", []byte{200, 'l'}), "ends too early"},
		{"a packet of no bytes", make([]byte, 4), "0 bytes"},
		{"an event that is cut", charontest.Packet(7, "list-sa", within("beta", value("state", "ESTABLISHED")))[:20], "lost"},
		{"no answer at all", nil, "lost"},
		{"events and no answer", bytes.Repeat(charontest.Packet(7, "list-sa", nil), 10), "lost"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			_, err := listFrom(ctx, tc.answer, false)
			var de *Error
			if !errors.As(err, &de) || !strings.Contains(err.Error(), tc.words) {
				t.Fatalf("error %v, want an *Error with %q", err, tc.words)
			}
			if tc.words != "lost" && !errors.Is(err, ErrProtocol) || tc.words == "lost" && !errors.Is(err, ErrGone) {
				t.Errorf("error %v is of the wrong kind", err)
			}
		})
	}
	if _, err := listFrom(t.Context(), ok, true); err != nil {
		t.Errorf("an empty list: %v", err)
	}
}

func TestListWithoutEndIsCutOff(t *testing.T) {
	var kids []byte
	for i := range 200 {
		kids = append(kids, within(fmt.Sprint("c", i), append(value("name", "c"), value("state", "INSTALLED")...))...)
	}
	one := charontest.Packet(7, "list-sa", within("x", append(value("state", "ESTABLISHED"), within("child-sas", kids)...)))
	answer := append(bytes.Repeat(one, MaxListed/200+2), charontest.Packet(1, "", nil)...)
	sas, err := listFrom(t.Context(), answer, true)
	if !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), fmt.Sprint(MaxListed)) {
		t.Errorf("%d SAs, error %v", len(sas), err)
	}
}

func TestEventsBeforeARegistrationIsConfirmedAreBounded(t *testing.T) {
	c, err := NewConn(charontest.Saying(bytes.Repeat(charontest.Packet(7, "ike-updown", nil), maxHeld+10), nil, true), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := c.Subscribe(ctx, "ike-updown"); !errors.Is(err, ErrProtocol) {
		t.Errorf("error %v, want %v", err, ErrProtocol)
	}
}
