// Package handover keeps the connections of NBD clients from one daemon to the next, in systemd's store of file descriptors
// (sd_notify(3), FDSTORE=1): a daemon that ends as planned puts them there when all that its clients had begun is answered, and the
// next one serves them on. systemd closes them when it is not to start another.
//
// Of a daemon that is killed nothing is there, since nobody could know how much of a client's stream it had read: its clients have to
// connect again.
package handover
