// Package ipsectest tests what package ipsec promises on hosts with a real strongSwan
// each. It has only tests.
package ipsectest
