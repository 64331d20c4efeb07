package web

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// newToken is a secret that nobody guesses, in the letters of URLs.
func newToken() string {
	b := make([]byte, tokenBytes)
	rand.Read(b) // it never fails, as of Go 1.24
	return base64.RawURLEncoding.EncodeToString(b)
}

// sameToken compares in a time that says nothing of where they differ, nor of their lengths.
func sameToken(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// isLoopbackHost reports whether a request's Host names this host's loopback, at any port: one may be forwarded by ssh. No name
// but localhost does, as the owner of any other decides what it stands for.
func isLoopbackHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
	return err == nil && addr.Zone() == "" && addr.Unmap().IsLoopback()
}

// isOwnOrigin reports whether a request comes from this page itself, or from no page, as when somebody types its address. Browsers
// say so by Sec-Fetch-Site, and by Origin of requests that are not for a page.
func isOwnOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Scheme == "http" && strings.EqualFold(u.Host, r.Host)
}

// secure sets the headers by which a browser keeps the page to itself: nothing but its own style, script and events is loaded,
// and no other page may frame, embed or learn of it.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer") // the address has the token
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
}
