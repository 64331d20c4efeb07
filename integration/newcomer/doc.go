// Package newcomer follows README.md to the letter on bare machines: a minimal Debian
// with systemd, git, make, ssh and Go. `make newcomer` runs it; a short test that finds
// README's commands where the others expect them is always run.
//
// The log lists the differences from README: the repository is this one and not
// GitHub's, commands that fetch something use this machine's network, and for a kernel
// without ESP or nbd docs/operations.md is followed. make interop has both in a virtual
// machine, and mounts README's disk there.
package newcomer
