package symbol

import (
	"errors"
	"sync"
	"testing"
)

// A value of each type is made once for an image, whoever asks; one that could not be made is tried again.
func TestDerive(t *testing.T) {
	type first struct{ n int }
	type second struct{ n int }
	im, made := new(Image), 0
	if _, err := Derive(im, func() (*first, error) { return nil, errors.New("not now") }); err == nil {
		t.Error("the error is not given to the caller")
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			v, err := Derive(im, func() (*first, error) { made++; return &first{made}, nil })
			if err != nil || v.n != 1 {
				t.Errorf("%v, %v: want the first value", v, err)
			}
		})
	}
	all.Wait()
	if v, err := Derive(im, func() (*second, error) { return &second{7}, nil }); err != nil || v.n != 7 || made != 1 {
		t.Errorf("%v, %v; made %d times: another type is another value", v, err, made)
	}
	if v, _ := Derive(new(Image), func() (*first, error) { return &first{9}, nil }); v.n != 9 {
		t.Error("images share a value")
	}
}
