//go:build tools

// Package tools names what is built, so that `go mod tidy` keeps go.sum complete.
package tools

import _ "github.com/np-guard/netpol-analyzer/cmd/netpolicy"
