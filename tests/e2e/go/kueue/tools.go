//go:build tools

// Package tools names what is built, so that `go mod tidy` keeps go.sum complete.
package tools

import _ "sigs.k8s.io/kueue/cmd/kueue"
