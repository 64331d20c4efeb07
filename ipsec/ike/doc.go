// Package ike has strongSwan do what peers need: it hands their connections and
// credentials over, has child SAs brought up and ended, and finds out what strongSwan is
// and what it has lost. It keeps nothing but the connection, and decides nothing.
package ike
