// Package nbdtest helps to test and measure the NBD server and its devices: a
// plain client that sends exactly what the test asks for, a device on local storage,
// and one in memory that a test commands.
package nbdtest
