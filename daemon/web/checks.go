//go:build !weakened

package web

import (
	"html/template"
	"net/http"
)

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// W1: every user of the host reaches the port, and only who was shown the page's address has the token.
func knowsToken(got, want string) bool { return sameToken(got, want) }

// W2: a page of another site may have made its name one of this host's (DNS rebinding).
func namedLoopback(r *http.Request) bool { return isLoopbackHost(r.Host) }

// W3: a page of another site asks for nothing here, shows nothing of it and learns nothing.
func ofThisOrigin(r *http.Request) bool { return isOwnOrigin(r) }

// W4: what a peer chose is text, and no part of the page: a template's output is taken as it was escaped.
func rendered(b []byte) template.HTML { return template.HTML(b) }
