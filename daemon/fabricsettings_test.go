package daemon

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// A fault in fabric.conf leaves the settings as they were, and keeps nothing on that the configuration has switched off meanwhile.
func TestFaultySettingsKeepNothingOn(t *testing.T) {
	hosts := newFabric(t, "alpha", "beta")
	beta := hosts["beta"]
	main, err := os.ReadFile(beta.conf)
	if err != nil {
		t.Fatal(err)
	}
	beta.write("fabric.conf", "sa_etm_max_num_srvcs 7\n")
	beta.write("ironwarp.yaml", strings.Replace(string(main), "fabric: {", "fabric: {agent: true, ", 1))
	if _, err := beta.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, err := beta.api.Fabric(t.Context()); err != nil || !s.Agent || s.Problem != nil {
		t.Fatalf("%+v, %v", s, err)
	}
	beta.write("fabric.conf", "sa_etm_max_num_srvcs 8\nno_such_option 1\n")
	beta.write("ironwarp.yaml", string(main))
	r, err := beta.api.Reload(t.Context())
	if err != nil || len(r.Unusable) != 1 || !strings.Contains(r.Unusable[0].Message, "fabric.conf:2: ") {
		t.Errorf("the reload says %+v, %v", r, err)
	}
	if got := beta.d.directory.Settings().SAETMMaxNumSrvcs; got != 7 {
		t.Errorf("sa_etm_max_num_srvcs is %d, not 7 as before", got)
	}
	if _, all := beta.d.directory.Partitions(); !all {
		t.Error("the agent, which the configuration has switched off, still runs")
	}
	// A file that is named has to be there: an empty one would be one without keys.
	beta.write("ironwarp.yaml", strings.Replace(string(main), "fabric: {", "fabric: {conf: /nowhere/fabric.conf, ", 1))
	r, err = beta.api.Reload(t.Context())
	if err != nil || len(r.Unusable) != 1 || !strings.Contains(r.Unusable[0].Message, "/nowhere/fabric.conf") {
		t.Errorf("the reload says %+v, %v", r, err)
	}
	if got := beta.d.directory.Settings().SAETMMaxNumSrvcs; got != 7 {
		t.Errorf("sa_etm_max_num_srvcs is %d, not 7 as before", got)
	}
}

// A change of fabric.conf holds when the reload has returned, and ends none of the directory's streams.
func TestSettingsThatAreReadAgainEndNoStream(t *testing.T) {
	hosts := newFabric(t, "alpha", "beta")
	alpha, beta := hosts["alpha"], hosts["beta"]
	beta.exportTo(api.ExportSpec{Name: "disk", Path: beta.image("disk.img", 1<<20), Allow: []string{"alpha"}})
	eventually(t, "the directory has the disk", func() bool { return strings.Join(alpha.services("disk"), " ") == "beta:disk" })
	streams := func() (ids []string) {
		t.Helper()
		all, err := alpha.api.Streams(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.Service == serviceFabric {
				ids = append(ids, s.ID)
			}
		}
		return ids
	}
	before := streams()
	if len(before) != 1 {
		t.Fatalf("streams %v", before)
	}
	for _, text := range []string{"sa_enhanced_trust_model TRUE\nsa_etm_max_num_srvcs 5\n", "sm_priority 3\nsminfo_polling_timeout 500\n", ""} {
		alpha.write("fabric.conf", text)
		if r, err := alpha.api.Reload(t.Context()); err != nil || len(r.Unusable) > 0 {
			t.Fatalf("%q: %+v, %v", text, r, err)
		}
		if found := alpha.services("disk"); strings.Join(found, " ") != "beta:disk" {
			t.Errorf("%q: alpha finds %v", text, found)
		}
		if found := beta.services("disk"); len(found) != 1 || !strings.HasSuffix(found[0], ":disk") {
			t.Errorf("%q: beta finds %v", text, found)
		}
	}
	if now := streams(); !slices.Equal(now, before) {
		t.Errorf("streams %v, before %v", now, before)
	}
}

// A manager finds out who the master is, itself included, where SMInfo is for managers with the M_Key alone.
func TestManagerWithProtectionFindsTheMaster(t *testing.T) {
	hosts := newFabric(t, "alpha", "beta")
	alpha, beta := hosts["alpha"], hosts["beta"]
	key := alpha.dir + "/m_key"
	alpha.write("m_key", "0x5ec2e7a11e0ddba1\n")
	alpha.write("fabric.conf", "m_key "+key+"\nm_key_protection 2\n")
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := alpha.api.Reload(t.Context()); err != nil || len(r.Unusable) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, h := range []*host{alpha, beta} {
		eventually(t, "the master is known", func() bool {
			s, err := h.api.Fabric(t.Context())
			return err == nil && s.Master == "127.0.1.1"
		})
	}
	if strings.Contains(alpha.log.String(), "wrong M_Key") {
		t.Error("the manager has taken itself for one with a wrong M_Key")
	}
}
