// Package auth is what two hosts authenticate each other with in IKE: identities
// (RFC 7146 3.1), and a pre-shared Secret, or a Credential and the Authorities behind
// it. All of them are checked before they are believed, and nothing prints a key.
package auth
