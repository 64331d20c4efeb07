// Package packages looks at what `make packages` and `make release` build as those who get it do: with dpkg, rpm,
// lintian, reprepro and whoever reads containers. integration/newcomer installs, upgrades and purges the packages.
package packages
