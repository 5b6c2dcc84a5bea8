// Package httpprofile has what the answers to go tool pprof's requests have in common.
package httpprofile

import (
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

// Answer answers with a profile of the hits in a time from now on, or of all until now if d is 0: collect is called at its end, or at the request's. The answer begins at once: go tool pprof gives up where
// none has begun some seconds after the time that it has asked for, and the names of many functions can take longer. So if collect fails, the answer is cut.
func Answer(w http.ResponseWriter, r *http.Request, d time.Duration, collect func() (*profile.Profile, error)) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="profile"`)
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Time{}) // a server without deadlines needs none lifted
	w.WriteHeader(http.StatusOK)
	_ = rc.Flush() // a server that can not has the answer begin at its end
	end := time.NewTimer(d)
	defer end.Stop()
	select {
	case <-end.C:
	case <-r.Context().Done():
	}
	p, err := collect()
	if err == nil {
		err = p.CheckValid()
	}
	if err != nil {
		panic(http.ErrAbortHandler) // net/http ends the connection
	}
	_ = p.Write(w) // the client may be gone
}
