// Package httpprofile has what the answers to go tool pprof's requests have in common.
package httpprofile

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/google/pprof/profile"

	"kprobes.dev/kprobes/internal/httpaccess"
)

// Most is the longest time that a profile may take.
const Most = time.Hour

// Seconds is the time that a request asks for by seconds=N, which go tool pprof sends for its flag -seconds; without it, what is given.
func Seconds(r *http.Request, without time.Duration) (time.Duration, error) {
	text := r.URL.Query().Get("seconds")
	if text == "" {
		return without, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if d := time.Duration(n * float64(time.Second)); err == nil && n > 0 && n <= Most.Seconds() {
		return d, nil
	}
	return 0, httpaccess.Refuse(http.StatusBadRequest, "seconds=%s: a number of seconds up to %.0f is wanted", text, Most.Seconds())
}

// Wait waits for the end of a profile's time, or of the request.
func Wait(w http.ResponseWriter, r *http.Request, d time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // a server without deadlines needs none lifted
	end := time.NewTimer(d)
	defer end.Stop()
	select {
	case <-end.C:
	case <-r.Context().Done():
	}
}

// Write answers with a profile.
func Write(w http.ResponseWriter, p *profile.Profile) error {
	if err := p.CheckValid(); err != nil {
		return fmt.Errorf("the profile is damaged: %w", err)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="profile"`)
	_ = p.Write(w) // the client may be gone
	return nil
}
