// Package secrets proves that no pre-shared key and no private key shows anywhere
// but in its own file: two hosts with real strongSwans live through adding peers,
// attaching, rotating, failing and removing, while everything that a host writes,
// answers and runs is kept and searched. It has tests alone.
package secrets
