package export

import (
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// Declaration turns a request into a declaration. It fails if a word is impossible. Package
// config finds what is wrong with the whole when it is written.
func Declaration(s api.ExportSpec) (config.Export, error) {
	if err := config.CheckExportName(s.Name); err != nil {
		return config.Export{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("export name %q %s", s.Name, err)}
	}
	if len(s.Path) == 0 || s.Path[0] != '/' {
		return config.Export{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("export path %q is not absolute", s.Path)}
	}
	allow := slices.Clone(s.Allow)
	slices.Sort(allow)
	if s.Writers != "" {
		if err := config.CheckWriters(s.Writers); err != nil {
			return config.Export{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("writers %q %s", s.Writers, err)}
		}
	}
	qos, err := config.LimitsOf(s.QoS)
	if err != nil {
		return config.Export{}, err
	}
	return config.Export{Name: s.Name, Path: s.Path, ReadOnly: s.ReadOnly, Writers: config.ParseWriters(s.Writers), Allow: slices.Compact(allow), Trust: config.Trust(s.Trust), Partition: s.Partition, Label: s.Label, QoS: qos}, nil
}

// Spec is the reverse of Declaration.
func Spec(e config.Export) api.ExportSpec {
	return api.ExportSpec{Name: e.Name, Path: e.Path, ReadOnly: e.ReadOnly, Writers: string(e.Writers), Allow: append([]string{}, e.Allow...), Trust: string(e.Trust), Partition: e.Partition, Label: e.Label, QoS: config.QoSOf(e.QoS)}
}
