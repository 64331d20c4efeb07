package web

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"reflect"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

//go:embed assets
var assets embed.FS

// section is a part of the page, which changes as a whole.
type section struct {
	ID   string
	HTML template.HTML // "": there is nothing to show
}

// sections are the parts of the page in their order, each a template of that name.
var sections = []string{"state", "troubles", "disks", "exports", "pools", "targets", "initiators", "nvme", "peers", "sas", "paths", "partitions", "fabric", "events", "doctor"}

// pages are the templates. What they show is escaped by html/template for where it stands.
type pages struct{ all *template.Template }

// newPages reads the templates, which are part of the program.
func newPages() pages {
	return pages{template.Must(template.New("").Funcs(template.FuncMap{
		"size": func(v any) string { return size(number(v)) }, "rate": rate, "persec": perSecond, "span": span, "latency": latency, "kind": kindOf,
		"clock": func(t time.Time) string { return t.Format(time.TimeOnly) }, "stamp": func(t time.Time) string { return t.Format(time.RFC3339) },
		"front": front, "transport": transportOf, "protection": protectionOf, "live": live, "session": sessionName, "disk": diskName, "pathstate": pathState, "rekeyed": rekeyed,
		"plot":       func(v view, key string) template.HTML { return plot(v.history[key]) },
		"newest":     func(v view, key string) sample { return v.history[key].last() },
		"row":        func(p template.HTML, io api.IO) row { return row{p, io} },
		"diskkey":    diskKey,
		"exportkey":  exportKey,
		"lunkey":     lunKey,
		"poolstate":  poolState,
		"fullness":   fullness,
		"limits":     limitsText,
		"first":      firstRows,
		"more":       moreRows,
		"perhundred": func(n int) float64 { return float64(n) * 0.6 },
	}).ParseFS(assets, "assets/*.html"))}
}

// row is what a table says of the I/O of a disk.
type row struct {
	Plot template.HTML
	IO   api.IO
}

// number is v as float64, of the integers that the API has.
func number(v any) float64 {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case float64:
		return v
	}
	return 0
}

// firstRows are the rows of a table that are shown, of any list.
func firstRows(all any) any {
	v := reflect.ValueOf(all)
	return v.Slice(0, min(v.Len(), maxRows)).Interface()
}

// moreRows is how many rows are not.
func moreRows(all any) int { return max(0, reflect.ValueOf(all).Len()-maxRows) }

// sections renders all of them. It fails if a template does.
func (p pages) sections(v view) (all []section, err error) {
	for _, id := range sections {
		var b bytes.Buffer
		if err := p.all.ExecuteTemplate(&b, id, v); err != nil {
			return nil, fmt.Errorf("render %s: %w", id, err)
		}
		all = append(all, section{id, rendered(bytes.TrimSpace(b.Bytes()))})
	}
	return all, nil
}

// page renders the page around its sections. It fails if the template does.
func (p pages) page(host string, parts []section) ([]byte, error) {
	var b bytes.Buffer
	err := p.all.ExecuteTemplate(&b, "page", struct {
		Host     string
		Sections []section
	}{host, parts})
	return b.Bytes(), err
}
