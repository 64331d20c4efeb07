// Package ipsectest proves what package ipsec promises on hosts with a real
// strongSwan each: its tests are all there is.
package ipsectest
