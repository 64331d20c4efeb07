// Package machine boots Debian machines with systemd as process 1 in the hosts of
// a lab: real units, users, sandboxes and strongSwan as its package starts it,
// with this machine's kernel.
package machine
