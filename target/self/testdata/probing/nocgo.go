//go:build !cgo

package main

const hasC = false
