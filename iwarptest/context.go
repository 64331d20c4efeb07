package iwarptest

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"
)

// Patience is how long anything in a test may take before it counts as hung.
const Patience = 2 * time.Minute

// Context ends with the test, or after Patience.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Logger writes to the standard error if the environment variable of that name is set, and
// else nowhere.
func Logger(variable string) *slog.Logger {
	if os.Getenv(variable) == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}
