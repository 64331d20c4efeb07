package ikematrix

import (
	"encoding/json"
	"fmt"
	"os"
)

// Result is the result of a row.
type Result struct {
	Case
	Works bool `json:"works"`
	// What was agreed on, by strongSwan's list after the delete and return.
	Agreed *Agreed `json:"agreed,omitempty"`
	// Why, By and Words of the expected refusal, if it came.
	Why   string `json:"why,omitempty"`
	By    string `json:"by,omitempty"`
	Words string `json:"words,omitempty"`
	// Stream reports whether RDMA Reads and Writes of package verbs went through.
	Stream bool `json:"stream,omitempty"`
	// Clear is how many packets the capture has outside ESP.
	Clear int `json:"clear"`
	// Surprise is what differed from what was expected.
	Surprise string `json:"surprise,omitempty"`
}

// Agreed is what the hosts agreed on.
type Agreed struct {
	Version int    `json:"version"` // of IKE
	IKE     string `json:"ike"`
	ESP     string `json:"esp"`
	PFS     string `json:"pfs,omitempty"` // the child's own DH group
	Mode    string `json:"mode"`
	ESN     bool   `json:"esn"`
	Encap   bool   `json:"encap"`
}

// Report is a run of the matrix on one data plane.
type Report struct {
	Plane      string   `json:"plane"`
	StrongSwan string   `json:"strongswan"` // its version
	Kernel     string   `json:"kernel"`
	Results    []Result `json:"results"`
	Asked      []Asked  `json:"asked"`
	// Control is how many clear packets the same check found with the guard off
	// and without an SA.
	Control int `json:"control_clear"`
	// Complete reports whether the run got to its end.
	Complete bool `json:"complete"`
}

// Failed lists what was not as expected, one line each.
func (r *Report) Failed() []string {
	var all []string
	for i := range r.Results {
		if s := &r.Results[i]; s.Surprise != "" {
			all = append(all, s.Name()+": "+s.Surprise)
		}
	}
	for _, a := range r.Asked {
		if a.Surprise != "" {
			all = append(all, a.What+" with "+a.IKE+", asked of strongSwan alone: "+a.Surprise)
		}
	}
	if r.Control == 0 {
		all = append(all, "the control row found nothing in clear with the guard off: the check of the wire cannot fail")
	}
	if !r.Complete {
		all = append(all, "the run did not come to its end")
	}
	return all
}

// Count is how many rows work, are refused as expected, and are surprises.
func (r *Report) Count() (work, refused, surprises int) {
	for i := range r.Results {
		switch s := &r.Results[i]; {
		case s.Surprise != "":
			surprises++
		case s.Works:
			work++
		default:
			refused++
		}
	}
	return work, refused, surprises
}

// Clear is how many packets in clear the rows have left on the wire.
func (r *Report) Clear() (n int) {
	for i := range r.Results {
		n += r.Results[i].Clear
	}
	return n
}

// Summary is the report in a line.
func (r *Report) Summary() string {
	work, refused, surprises := r.Count()
	return fmt.Sprintf("IKE matrix, %s: %d combinations work, %d are refused as expected, %d surprises; %d packets in clear", r.Plane, work, refused, surprises, r.Clear())
}

// ReadReport reads a run's report. It fails where the file can't be read, or is no
// report.
func ReadReport(path string) (*Report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the results of the IKE matrix: %w", err)
	}
	r := &Report{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("read the results of the IKE matrix from %s: %w", path, err)
	}
	return r, nil
}

// Write writes the report to a file. It fails where the file can't be written.
func (r *Report) Write(path string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
