package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/sas"
)

// Unusable lists the parts of a configuration with which a daemon starts and that it
// cannot use: peers whose secret or certificates cannot be read, and ULPs of users who
// do not exist.
func Unusable(c *config.Config) []*api.Error {
	var out []*api.Error
	for _, p := range c.Peers {
		if p.Protection != config.ProtectIPsec {
			continue
		}
		if _, err := loadCredentials(p); err != nil {
			e := *sas.Problem(p.Name, err)
			e.Message = fmt.Sprintf("a file of peer %s cannot be used: %v", p.Name, err)
			if errors.Is(err, fs.ErrNotExist) {
				e.Code, e.Fix = api.CodeNotFound, "bring the file there, or name another with `ironwarp peer set`"
			}
			out = append(out, &e)
		}
	}
	for _, u := range c.ULPs {
		if e := ulpProblem(u); e != nil {
			out = append(out, e)
		}
	}
	return out
}

// ulpProblem says why a ULP is disabled, nil if it is not.
func ulpProblem(u config.ULP) *api.Error {
	if u.Disabled == nil {
		return nil
	}
	return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("ULP %s is disabled: %s", u.Name, strings.ReplaceAll(u.Disabled.Error(), "\n", "; ")),
		Fix: "its users are refused until then, and its disks wait"}
}
