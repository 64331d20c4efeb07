// Package config reads, checks and writes the configuration:
// ironwarp.yaml, the files of peers.d, exports.d, targets.d and ulps.d beside it, and the
// secret files they point to.
//
// Reading is strict. An unknown key, a wrong type or a value out of range is an
// Error with file, line, column and what is allowed, and all of them are reported
// at once. Secrets are never in these files: a peer names a
// psk_file, which is refused unless its mode is 0600 or stricter.
package config
