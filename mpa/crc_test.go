package mpa

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// TestCRCIsOnIfEitherSideAsks looks at the octets, and has a peer send wrong
// CRCs where nobody asked for any: the field is there and is not checked
// (RFC 5044 section 7.1.1).
func TestCRCIsOnIfEitherSideAsks(t *testing.T) {
	for _, c := range []CRCMode{CRCPrefer, CRCAvoid} {
		for _, s := range []CRCMode{CRCPrefer, CRCAvoid} {
			client, server := connect(t, "tcp", &Config{CRC: c}, &Config{CRC: s})
			on := c == CRCPrefer || s == CRCPrefer
			if err := errors.Join(client.Append([]byte("segment"), nil), client.Flush()); err != nil {
				t.Fatal(err)
			}
			want := frame("segment", on)
			got := make([]byte, len(want))
			if _, err := io.ReadFull(server.NetConn(), got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("client %v, server %v: sent %x, want %x", c, s, got, want)
			}
			for _, x := range []byte{0, 0xff} {
				bad := frame("segment", true)
				bad[len(bad)-1] ^= x
				client.NetConn().Write(bad)
				sink := until(1, 0)
				err := server.Receive(sink)
				if x != 0 && on {
					if !errors.Is(err, ErrCRC) {
						t.Errorf("client %v, server %v: a wrong CRC: %v", c, s, err)
					}
				} else if err != errEnough || string(sink.segs[0]) != "segment" {
					t.Errorf("client %v, server %v: CRC with %#x: %v", c, s, x, err)
				}
				server.rx.err = nil
			}
		}
	}
}
