// Package secrets tests that no pre-shared key and no private key appears anywhere but
// in its own file: two hosts with real strongSwans add, attach, rotate, fail and
// remove, while everything that a host writes, answers and runs is kept and searched.
// It has only tests.
package secrets
