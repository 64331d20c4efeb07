// Package daemon is an IronWarp host: it holds the configuration, the RNIC, the
// IPsec manager, the exports, the attached disks and the control API.
//
// What an administrator declares is in files (package config); the daemon applies them and
// never writes anything else there. What it must remember by
// itself, the attachments, is in the state directory. Its control API
// (package api) is a Unix socket for root, and for the users of this host that the
// configuration names: local consumers of the RNIC (RFC 5042 section 2.1.3) with disks,
// sessions and a quota of their own, who need not trust each other.
//
// A peer is recognised by the address its streams come from and by what IKE authenticated; both
// have to fit. What one peer does to its streams, a broken
// export, an IKE daemon that is not there: each shows up in the status with
// what to do about it, and everything else keeps running.
package daemon
