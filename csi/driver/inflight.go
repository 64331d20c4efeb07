package driver

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// inflight are the volumes for which a call is under way. The zero value is ready.
type inflight struct {
	mu    sync.Mutex // guards the fields below it
	names map[string]struct{}
}

// begin reserves a volume for a call, until the caller calls end. It fails with ABORTED while another call has it
// ("Concurrency").
func (f *inflight) begin(name string) (end func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.names[name]; ok {
		return nil, status.Errorf(codes.Aborted, "another call for volume %s is under way; repeat this one when it has ended", name)
	}
	if f.names == nil {
		f.names = make(map[string]struct{})
	}
	f.names[name] = struct{}{}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.names, name)
	}, nil
}
