package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// sbom says in CycloneDX what a program or library of a package is made of, by what Go's linker has written into it.
func (b *build) sbom(of, installed, program, arch string) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	body, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	return b.bom(of, installed, info, sha256.Sum256(body), arch)
}

// bom is sbom of what is known of a program with this SHA-256.
func (b *build) bom(of, installed string, info *debug.BuildInfo, sum [sha256.Size]byte, arch string) ([]byte, error) {
	bom := cyclonedx.NewBOM()
	bom.SerialNumber = serial(sum)
	kind := cyclonedx.ComponentTypeApplication
	if under(installed, "/"+libraries) {
		kind = cyclonedx.ComponentTypeLibrary
	}
	main := cyclonedx.Component{
		BOMRef: "pkg:golang/" + info.Main.Path + "@" + b.version, Type: kind, Name: of, Version: b.version,
		PackageURL: "pkg:golang/" + info.Main.Path + "@" + b.version + "?goos=linux&goarch=" + arch, Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sum)}},
		Properties: &[]cyclonedx.Property{{Name: "file", Value: installed}},
	}
	bom.Metadata = &cyclonedx.Metadata{Timestamp: b.date.Format(time.RFC3339), Component: &main}
	parts := []cyclonedx.Component{component("stdlib", info.GoVersion[min(2, len(info.GoVersion)):], "")} // go1.26 is version 1.26 of pkg:golang/stdlib
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		parts = append(parts, component(dep.Path, dep.Version, dep.Sum))
	}
	refs := make([]string, len(parts))
	for i, p := range parts {
		refs[i] = p.BOMRef
	}
	bom.Components = &parts
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}} // which part wants which the program does not say
	var out bytes.Buffer
	err := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_5)
	return out.Bytes(), err
}

// component is a module. Its sum is go.sum's, which is one over the sums of its files.
func component(path, version, sum string) cyclonedx.Component {
	purl := "pkg:golang/" + path + "@" + version
	c := cyclonedx.Component{BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl, Scope: cyclonedx.ScopeRequired}
	if sum != "" {
		c.Properties = &[]cyclonedx.Property{{Name: "go:sum", Value: sum}}
	}
	return c
}

// serial is a UUID (RFC 9562 5.8) that is the same for the same program.
func serial(sum [sha256.Size]byte) string {
	u := sum[:16]
	u = append([]byte(nil), u...)
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
