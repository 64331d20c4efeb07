package ipsec

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/ike"
)

// Config is what New needs. The zero value is useful.
type Config struct {
	// Socket is the path of charon's VICI socket, with or without "unix://".
	// Default: DefaultSocket.
	Socket string
	// DataPlane is who does ESP; auto asks charon which plugins it has.
	DataPlane esp.Plane
	// NetNS is the path of the network namespace that the guard is for; "" is
	// this process's own.
	NetNS string
	// Logger gets a line for each event in the life of an SA. Default: none.
	Logger *slog.Logger
	// CallTimeout bounds calls that charon answers at once; default 5 s. A list of SAs may
	// take twelve times as long.
	CallTimeout time.Duration
	// InitiateTimeout bounds an attempt to bring up a child SA; default 15 s.
	InitiateTimeout time.Duration
}

func (c Config) withDefaults() Config {
	c.Socket = ike.SocketPath(c.Socket)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.CallTimeout <= 0 {
		c.CallTimeout = ike.CallTimeout
	}
	if c.InitiateTimeout <= 0 {
		c.InitiateTimeout = initiateTimeout
	}
	return c
}
