package web

import (
	"encoding/json"
	"html/template"
	"net/http"
	"time"
)

// stream sends the sections that change to a page that is open, as server-sent events of one line of JSON each, until the
// page goes, does not read, or the server ends. A page that misses some gets the newest.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	select {
	case s.streams <- struct{}{}:
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, "Too many pages are open.", http.StatusServiceUnavailable)
		return
	}
	defer func() {
		s.viewed.Store(time.Now().Unix())
		<-s.streams
	}()
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	if r.Method == http.MethodHead {
		return
	}
	rc := http.NewResponseController(w)
	sent := map[string]template.HTML{}
	for {
		shown, changed := s.current()
		for _, part := range shown {
			if was, ok := sent[part.ID]; ok && was == part.HTML {
				continue
			}
			// JSON has no line ends, by which an event would end.
			data, err := json.Marshal(struct{ ID, HTML string }{part.ID, string(part.HTML)})
			if err != nil {
				return
			}
			_ = rc.SetWriteDeadline(time.Now().Add(s.writeTime))
			if _, err := w.Write(append(append([]byte("data: "), data...), "\n\n"...)); err != nil {
				return
			}
			sent[part.ID] = part.HTML
		}
		if rc.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}
