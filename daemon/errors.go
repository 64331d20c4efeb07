package daemon

import (
	"context"
	"errors"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/transport"
)

// apiError gives any error a code; nil stays nil.
func apiError(err error) *api.Error {
	if err == nil {
		return nil
	}
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	e = &api.Error{Code: api.CodeInternal, Message: err.Error()}
	var faults config.Errors
	var neg *negotiation.Error
	var ike *charon.Error
	var flow *transport.FlowError
	switch {
	case errors.As(err, &faults):
		e.Code = api.CodeInvalid
	case errors.Is(err, rnbd.ErrNotFound):
		e.Code = api.CodeNotFound
	case errors.Is(err, rnbd.ErrForbidden):
		e.Code = api.CodeForbidden
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, probe.ErrSilent):
		e.Code = api.CodeTimeout
	case errors.As(err, &neg), errors.As(err, &ike), errors.As(err, &flow), errors.Is(err, ipsec.ErrNotConnected), errors.Is(err, transport.ErrNotProtected):
		e.Code = api.CodeUnavailable
	}
	return e
}
