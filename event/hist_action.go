package event

import (
	"fmt"
	"strings"
)

// action parses HANDLER(OF).ACTION(PARAMS).
func (h *Hist) action(text string) error {
	var a HistAction
	handler, rest, _ := strings.Cut(text, "(")
	for i, name := range histHandlers {
		if name == handler {
			a.Handler = HistHandler(i)
		}
	}
	of, rest, closed := strings.Cut(rest, ")")
	if a.Handler != HistOnMatch {
		if !closed {
			return h.Refuse(HistErrno, text, "a parenthesis is missing")
		}
		a.Var = of
	} else {
		var dot bool
		a.System, a.Event, dot = strings.Cut(of, ".")
		if !closed {
			return h.Refuse(HistNoClosingParen, of, "")
		}
		if !dot {
			return h.Refuse(HistSubsysNotFound, of, "onmatch(GROUP.EVENT)")
		}
	}
	_, rest, dot := strings.Cut(rest, ".")
	name, rest, open := strings.Cut(rest, "(")
	if !dot || !open {
		return h.Refuse(HistActionNotFound, "", "save(…), trace(SYNTHETIC,…) or SYNTHETIC(…)")
	}
	a.Name = name
	if err := h.does(&a, rest); err != nil {
		return err
	}
	h.Actions = append(h.Actions, a)
	return nil
}

// does finds out what an action does; rest is what follows its parenthesis.
func (h *Hist) does(a *HistAction, rest string) error {
	params, _, closed := strings.Cut(rest, ")")
	if strings.HasPrefix(a.Name, "snapshot") {
		switch {
		case !closed:
			return h.Refuse(HistNoClosingParen, params, "")
		case a.Handler == HistOnMatch:
			return h.Refuse(HistActionMismatch, a.Name, "")
		case h.command:
			a.Snapshot = true
			return nil
		}
		return h.Refuse(HistUnsupported, a.Name, "a trace here has no second buffer that a snapshot could be taken to; save(…) keeps values")
	}
	list, err := h.params(params)
	if err != nil {
		return err
	}
	a.Params = list
	switch {
	case strings.HasPrefix(a.Name, "save"):
		a.Save = true
		if a.Handler == HistOnMatch {
			return h.Refuse(HistActionMismatch, a.Name, "save belongs to onmax($VAR) and onchange($VAR)")
		}
	case strings.HasPrefix(a.Name, "trace"):
		a.Synth, a.Params = list[0], list[1:]
	default:
		a.Synth = a.Name
	}
	if a.Synth == "" && !a.Save {
		return h.Refuse(HistActionNotFound, "", "save(…), trace(SYNTHETIC,…) or SYNTHETIC(…)")
	}
	return nil
}

// params splits the parameters of an action. The kernel takes none that is a single character.
func (h *Hist) params(text string) ([]string, error) {
	var out []string
	for _, p := range strings.Split(text, ",") {
		p = strings.TrimSpace(p)
		switch {
		case len(p) < 2:
			return nil, h.Refuse(HistInvalidParam, p, "a parameter has two characters at least, as in the kernel")
		case len(out) == MaxSynthFields+1:
			return nil, h.Refuse(HistTooManyParams, "", fmt.Sprintf("at most %d", MaxSynthFields))
		}
		out = append(out, p)
	}
	return out, nil
}
