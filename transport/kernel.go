package transport

import (
	"context"
	"errors"
	"net/netip"
)

func dialKernel(ctx context.Context, remote netip.AddrPort, f Flow, cfg *Config, recv NewReceiver) (*Assoc, error) {
	return nil, flowError("dial", f, errors.ErrUnsupported)
}

func (l *SCTPListener) listenKernel(ctx context.Context) error { return errors.ErrUnsupported }
