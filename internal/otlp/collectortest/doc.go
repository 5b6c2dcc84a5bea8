// Package collectortest has tests of what kprobe sends by OTLP with the OpenTelemetry Collector itself: a module of its own, so that nobody else needs it. The Collector runs
// in the test's process. It takes some minutes of CPU time to build.
package collectortest
