//go:build cgo

package main

import "C" // links runtime/cgo

const hasC = true
