module kprobes.dev/kprobes

go 1.25.0

toolchain go1.26.8

require (
	bazil.org/fuse v0.0.0-20230120002735-62a210ff1fd5
	github.com/cilium/ebpf v0.22.0
	github.com/google/go-cmp v0.7.0
	github.com/google/pprof v0.0.0-20250403155104-27863c87afa6
	github.com/ianlancetaylor/demangle v0.0.0-20260724033716-83e58baca724
	github.com/moby/sys/mountinfo v0.7.2
	github.com/rogpeppe/go-internal v1.14.1
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.10
	github.com/ulikunitz/xz v0.5.17
	go.yaml.in/yaml/v3 v3.0.4
	golang.org/x/sys v0.47.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	golang.org/x/tools v0.40.1-0.20260108161641-ca281cf95054 // indirect
)
