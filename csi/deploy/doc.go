// Package deploy has the manifests that deploy the driver in a cluster, and a test of them against Kubernetes' own types.
package deploy
