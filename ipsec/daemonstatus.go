package ipsec

import (
	"context"
	"time"
)

// DaemonStatus tells how it stands with charon.
type DaemonStatus struct {
	Socket    string    `json:"socket"`
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	Daemon    string    `json:"daemon,omitempty"`  // charon or charon-systemd
	Version   string    `json:"version,omitempty"` // such as 5.9.8
	DataPlane DataPlane `json:"data_plane"`
	Plugins   []string  `json:"plugins,omitempty"`
	LastError string    `json:"last_error,omitempty"`
	Restarts  uint64    `json:"restarts"` // connections lost since Run
}

// ProbeDaemon connects to charon once and tells what it is. The error is a
// *DaemonError whose text says what to do.
func ProbeDaemon(ctx context.Context, socket string) (DaemonStatus, error) {
	return DaemonStatus{}, errUnwritten
}
