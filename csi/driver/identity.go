package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Name is the driver's name, as StorageClasses and the CSIDriver object have it.
const Name = "csi.ironwarp.org"

// Identity is the Identity service.
type Identity struct {
	csi.UnimplementedIdentityServer
	daemon     Prober
	version    string
	controller bool
	topology   bool
}

// GetPluginInfo returns the driver's name and version. It does not fail.
func (s *Identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: Name, VendorVersion: s.version}, nil
}

// GetPluginCapabilities returns what services the plugin has. It does not fail.
func (s *Identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	out := new(csi.GetPluginCapabilitiesResponse)
	service := func(t csi.PluginCapability_Service_Type) {
		out.Capabilities = append(out.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}})
	}
	if s.controller {
		service(csi.PluginCapability_Service_CONTROLLER_SERVICE)
	}
	if s.topology {
		service(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	out.Capabilities = append(out.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}})
	return out, nil
}

// Probe says whether the daemon of this host answers. It does not fail: a plugin that were restarted for its daemon's sake would
// not bring that back.
func (s *Identity) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	_, err := s.daemon.Info(ctx)
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(err == nil)}, nil
}
