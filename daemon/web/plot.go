package web

import (
	"html/template"
	"strconv"
	"strings"
)

// A plot is drawn in this system of coordinates, and scaled by the style.
const (
	plotWidth  = maxSamples - 1
	plotHeight = 40
)

// plot draws the bytes that were read and written per second over the last looks, on one scale. Times without an answer are gaps.
// It holds nothing but numbers, so that it is HTML as it is.
func plot(s *series) template.HTML {
	if s == nil || len(*s) < 2 {
		return ""
	}
	most := 1.0
	for _, x := range *s {
		most = max(most, x.ReadBytes, x.WriteBytes)
	}
	var b strings.Builder
	b.WriteString(`<svg class="plot" viewBox="0 -1 ` + strconv.Itoa(plotWidth) + ` ` + strconv.Itoa(plotHeight+2) + `" preserveAspectRatio="none" aria-hidden="true" focusable="false">`)
	curve(&b, "read", *s, most, func(x sample) float64 { return x.ReadBytes })
	curve(&b, "write", *s, most, func(x sample) float64 { return x.WriteBytes })
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

// curve draws one value of each sample; the newest stands at the right.
func curve(b *strings.Builder, class string, s series, most float64, of func(sample) float64) {
	b.WriteString(`<path class="` + class + `" d="`)
	pen := "M"
	for i, x := range s {
		if !x.known {
			pen = "M"
			continue
		}
		b.WriteString(pen)
		b.WriteString(strconv.Itoa(plotWidth - (len(s) - 1 - i)))
		b.WriteByte(' ')
		b.WriteString(strconv.FormatFloat(plotHeight*(1-of(x)/most), 'f', 1, 64))
		pen = "L"
	}
	b.WriteString(`"/>`)
}
