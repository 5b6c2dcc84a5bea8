package instances_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"kprobes.dev/kprobes/internal/engine/instances"
)

// A number is not given again while a thread may count for it or an instance may have it.
func TestNumbers(t *testing.T) {
	type numbers = *instances.Numbers
	const always = 1 << 20
	for _, c := range []struct {
		name    string
		busy    int // a thread is in code that was taken out, until so many changes were made
		err     error
		do      func(n numbers)
		want    []int // what Take gives
		recycle []int
	}{
		{name: "no event has gone", do: func(numbers) {}},
		{name: "no code was put in", busy: always, do: func(n numbers) { n.Free(3, 4) }, want: []int{3, 4}},
		{name: "no thread is there", do: func(n numbers) { n.Cool(3) }, want: []int{3}},
		{name: "a thread stays", busy: always, do: func(n numbers) { n.Cool(3) }},
		{name: "a thread leaves", busy: 3, do: func(n numbers) { n.Cool(3) }, want: []int{3}},
		{name: "the target has gone", busy: 3, err: errors.New("gone"), do: func(n numbers) { n.Cool(3) }},
		{name: "instances may have it", do: func(n numbers) { n.Hold(3); n.Hold(4) }},
		{name: "no instance has it any more", do: func(n numbers) { n.Hold(3); n.Hold(4); n.Vacate(4) }, want: []int{4}},
		{name: "it is somebody's", do: func(n numbers) { n.Hold(3); n.Vacate(5) }},
		{name: "no instance, but a thread", busy: always, do: func(n numbers) { n.Hold(3); n.Vacate(3) }},
		{name: "vacated twice", do: func(n numbers) { n.Hold(3); n.Vacate(3); n.Vacate(3) }, want: []int{3}},
		{name: "counts are kept first", do: func(n numbers) { n.Count(3, 4) }, want: []int{3, 4}, recycle: []int{3, 4}},
		{name: "counts may still grow", busy: always, do: func(n numbers) { n.Count(3) }},
		{
			name: "counts are shown as long as there is another", busy: 3,
			do:   func(n numbers) { n.Count(1); n.Cool(2); n.Free(3) },
			want: []int{3, 2, 1}, recycle: []int{1},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.busy, f.leaves, f.err = c.busy > 0, c.busy, c.err
				var recycled, got []int
				n := instances.NewNumbers(f, func(id int) { recycled = append(recycled, id) })
				c.do(n)
				for id, ok := n.Take(); ok; id, ok = n.Take() {
					got = append(got, id)
				}
				if !slices.Equal(got, c.want) || !slices.Equal(recycled, c.recycle) {
					t.Errorf("numbers %d, recycled %d; want %d, %d", got, recycled, c.want, c.recycle)
				}
			})
		})
	}
}
