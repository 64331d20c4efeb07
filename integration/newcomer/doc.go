// Package newcomer follows README.md to the letter on machines that have nothing:
// Debian's least with systemd, git, make, ssh and Go. `make newcomer` runs it; a
// short test that README's commands are where they are looked for is always run.
//
// What is not README's own is listed in the log: the repository is this one in
// place of GitHub's, commands that fetch something have this machine's network,
// and a kernel without ESP or nbd gets by as docs/operations.md says. make interop
// has both in a virtual machine, and mounts README's disk there.
package newcomer
