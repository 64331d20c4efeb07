package main

import (
	"slices"
	"testing"
)

func TestBlockRowsNameServersAndJobsThatThereAre(t *testing.T) {
	for name, group := range map[string]struct {
		rows    []row
		servers map[string]startServer
	}{
		"fio":                     {slices.Concat(fioRows(), vhostRows(), versionRows("")), blockServers},
		"fio and an old one":      {versionRows("old/ironwarp"), blockServersAnd("old/ironwarp")},
		"fio over sctp-udp":       {fioSCTPRows(), blockServers},
		"disk through ESP":        {espDiskRows(), (*diskHosts)(nil).espDisks()},
		"shaped paths":            {shapedRows(), (*diskHosts)(nil).shapedDisks()},
		"kernel NVMe/TCP":         {guestDiskRows(), guestDisks},
		"the kernel's initiators": {guestISCSIRows(), kernelInitiators},
		"lost path":               {lostPathRows(), (*diskHosts)(nil).losingDisks()},
		"iSCSI":                   {slices.Concat(tgtRows(), nbdkitISCSIRows(), digestRows(), perfRows()), iscsiServers},
		"iSER":                    {iserRows(), iserServers},
	} {
		if len(group.rows) == 0 {
			t.Errorf("%s has no rows", name)
		}
		for _, r := range group.rows {
			for _, f := range append([]ref{r.ours}, r.rival...) {
				kind, job := cutContender(f.contender)
				if group.servers[kind] == nil || !slices.ContainsFunc(fioJobs, func(j fioJob) bool { return j.name == job }) {
					t.Errorf("%s: row %q names %q", name, r.name, f.contender)
				}
			}
		}
	}
}
