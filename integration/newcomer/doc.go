// Package newcomer follows README.md, and the pages of docs/tasks, to the letter on bare
// machines: a minimal Debian with systemd, git, make and ssh. `make newcomer` runs it; a
// short test that finds the commands where the others expect them is always run.
//
// The log lists the differences from README: the repository is this one and not
// GitHub's, commands that fetch something use this machine's network, Go is this
// machine's where nobody has it to fetch, and for a kernel
// without ESP or nbd docs/operations.md is followed. The pages of docs/tasks do not build the program again. make interop has both in a virtual
// machine, and mounts README's disk there.
package newcomer
