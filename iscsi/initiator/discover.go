package initiator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
)

// maxTargets bounds what is remembered of a portal.
const maxTargets = 4096

// Target is a target, and where it is served: as host:port,group.
type Target struct {
	Name    string
	Portals []string
}

// Targets asks the portal at the other end of a connection. It fails with ErrRefused, ErrProtocol,
// ErrTarget, and with the network's error. The connection is of no use afterwards.
func Targets(ctx context.Context, nc net.Conn, cfg Config) ([]Target, error) {
	defer context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })()
	s := newLogin(nc, cfg)
	if _, err := s.run([]string{"SessionType", "Discovery"}, []string{"MaxRecvDataSegmentLength", strconv.Itoa(maxData)}); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	all, err := s.sendTargets()
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	// Whether it is heard of or not, the session is over.
	_ = s.send(nil, func(h *iscsi.BHS) {
		q := iscsi.Logout{Immediate: true, Reason: iscsi.CloseSession, ITT: s.itt, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
		q.Put(h)
	})
	return all, nil
}

func (s *login) sendTargets() (all []Target, err error) {
	s.itt = 1
	q := iscsi.Text{Final: true, ITT: s.itt, TTT: iscsi.NoTag}
	for text, data := iscsi.AppendPair(nil, "SendTargets", "All"), []byte(nil); ; text = nil {
		q.CmdSN, q.ExpStatSN = s.cmdSN, s.expStatSN
		if err := s.send(text, q.PutRequest); err != nil {
			return nil, err
		}
		s.cmdSN++
		h, part, err := s.receive()
		if err != nil {
			return nil, err
		}
		r, err := iscsi.ParseTextResponse(&h)
		if h.Opcode() != iscsi.OpTextResp || err != nil {
			return nil, fmt.Errorf("%v to SendTargets: %w", h.Opcode(), ErrProtocol)
		}
		s.expStatSN = r.StatSN + 1
		// A part may end within a pair.
		data = append(data, part...)
		end := len(data)
		if !r.Final {
			end = strings.LastIndexByte(string(data), 0) + 1
		}
		for pair := range strings.SplitSeq(string(data[:end]), "\x00") {
			key, value, _ := strings.Cut(pair, "=")
			switch {
			case pair == "":
			case key == "TargetName" && len(all) < maxTargets && iscsi.IsName(value):
				all = append(all, Target{Name: value})
			case key == "TargetAddress" && len(all) > 0:
				all[len(all)-1].Portals = append(all[len(all)-1].Portals, value)
			default:
				return nil, fmt.Errorf("%.40q in the list of targets: %w", pair, ErrProtocol)
			}
		}
		data = append(data[:0], data[end:]...)
		if r.Final {
			return all, nil
		}
		q.TTT = r.TTT
	}
}
