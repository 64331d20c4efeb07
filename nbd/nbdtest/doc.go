// Package nbdtest helps to test and measure the NBD server and its backends: a
// plain client that sends exactly what it is told, a backend on local storage,
// and one in memory that a test commands.
package nbdtest
