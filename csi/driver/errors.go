package driver

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// statusCodes are the codes of the specification ("Error Scheme") for those of the control API.
var statusCodes = map[string]codes.Code{
	api.CodeInvalid:     codes.InvalidArgument,
	api.CodeNotFound:    codes.NotFound,
	api.CodeExists:      codes.AlreadyExists,
	api.CodeInUse:       codes.FailedPrecondition,
	api.CodeForbidden:   codes.PermissionDenied,
	api.CodeUnavailable: codes.Unavailable,
	api.CodeTimeout:     codes.DeadlineExceeded,
	api.CodeNoSpace:     codes.ResourceExhausted,
	api.CodeUnsupported: codes.InvalidArgument,
	api.CodeInternal:    codes.Internal,
}

// statusOf is an error of the control API as the orchestrator gets it, with what was tried.
func statusOf(tried string, err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Internal
	var e *api.Error
	switch {
	case errors.As(err, &e):
		if c, ok := statusCodes[e.Code]; ok {
			code = c
		}
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Errorf(code, "%s: %s", tried, oneLine(err))
}

// oneLine is an error in one line, as logs and events have it: those of the control API say what to do in a second one.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// hasCode reports whether a daemon answered an error of that code.
func hasCode(err error, code string) bool {
	return errors.Is(err, &api.Error{Code: code})
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func outOfRange(format string, args ...any) error {
	return status.Errorf(codes.OutOfRange, format, args...)
}

func refused(format string, args ...any) error {
	return status.Errorf(codes.FailedPrecondition, format, args...)
}

func notFound(format string, args ...any) error {
	return status.Errorf(codes.NotFound, format, args...)
}

func exists(format string, args ...any) error {
	return status.Errorf(codes.AlreadyExists, format, args...)
}

// unreachable is the error of a storage host that does not answer, or that is not there: what it has is not known.
func unreachable(host string, err error) error {
	return status.Errorf(codes.Unavailable, "ask storage host %s: %s", host, oneLine(err))
}
