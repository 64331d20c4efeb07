// Package siw runs the conformance suite between package verbs and Linux' soft-iWARP
// (siw), whose end is the program of package iwarptest/agent. It runs where siw is: in the virtual
// machine of package vm, with siw in one network namespace and this process in another.
package siw
