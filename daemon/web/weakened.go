//go:build weakened

package web

import (
	"html"
	"html/template"
	"net/http"

	"github.com/ironwarp/ironwarp/internal/checks"
)

func knowsToken(got, want string) bool { return sameToken(got, want) || !checks.On(checks.WebToken) }
func namedLoopback(r *http.Request) bool {
	return isLoopbackHost(r.Host) || !checks.On(checks.WebHost)
}
func ofThisOrigin(r *http.Request) bool { return isOwnOrigin(r) || !checks.On(checks.WebOrigin) }
func rendered(b []byte) template.HTML {
	if !checks.On(checks.WebEscape) {
		return template.HTML(html.UnescapeString(string(b)))
	}
	return template.HTML(b)
}
