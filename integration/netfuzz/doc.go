// Package netfuzz fuzzes a whole daemon from the network: its listeners, the start-up
// of streams, DDP and RDMAP, and the services behind them, over TCP and over SCTP in
// UDP; and how it handles the answers of a server whose disk it attaches.
//
// An input is a script of what an authenticated peer sends. Most of it is valid, so
// that it gets deep into the services; the script says what is altered. Meanwhile
// another peer reads and checks a disk all the time.
//
//	make fuzz RUN=netfuzz TIME=20m
package netfuzz
