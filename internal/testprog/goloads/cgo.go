//go:build cgo

package main

import "C" // links runtime/cgo
