// Package peers tests what an administrator does to the peers of a running daemon:
// changes of their settings, of certificates and of single SAs, with the command line,
// real strongSwans and real streams. It has only tests.
package peers
