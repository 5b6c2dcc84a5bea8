//go:build probed

package main

import "kprobes.dev/kprobes"

func register() error { return kprobes.RegisterKprobe(&kprobes.Kprobe{SymbolName: "main.work"}) }
