package amd64

import (
	"sync"
	"sync/atomic"
)

// layout says which bytes follow an opcode, and what it does to control flow:
// the low byte is a form, the next seven bits a Kind.
type layout uint16

// The parts of a form: bits 0 to 3 name the immediate, the rest are flags.
const (
	immNone  layout = iota
	immByte         // 1 byte
	immWord         // 2 bytes
	immLong         // 4 bytes, whatever the operand size
	immZ            // 2 bytes under an operand-size prefix, else 4
	immV            // as immZ, but 8 with REX.W (mov r64, imm64)
	immEnter        // 2 bytes and 1 byte
	immPair         // 1 byte and 1 byte (extrq, insertq)
	immMoffs        // an address of 8 bytes, or 4 with an address-size prefix
	immAbs          // 8 bytes (jmpabs)
	immRel8         // branch displacement of 1 byte; those below are branch displacements too
	immRel32        // 4 bytes
	immRelZ         // as immZ (xbegin)
	immMask  layout = 0x0f

	hasModRM layout = 0x10
	isGroup  layout = 0x20   // ModRM.reg decides more: see group
	isPrefix layout = 0x40   // legacy prefix, REX, or the start of a longer encoding
	noMem    layout = 0x80   // mod is ignored: a register, always
	isBad    layout = 0x8000 // #UD on every processor in 64-bit mode
)

func (l layout) kind() Kind { return Kind(l >> 8 & 0x7f) }

func (l layout) with(k Kind) layout { return l&0x80ff | layout(k)<<8 }

// forms names the forms in the pictures below.
var forms = [128]layout{
	'.': 0,
	'b': immByte,
	'w': immWord,
	'z': immZ,
	'v': immV,
	'e': immEnter,
	'o': immMoffs,
	'j': immRel8,
	'J': immRel32,
	'm': hasModRM,
	'B': hasModRM | immByte,
	'Z': hasModRM | immZ,
	'g': hasModRM | isGroup,
	'p': isPrefix,
	'x': isBad,
}

// jmpabs (REX2 A1) goes to an address in the code that is not relative to it.
var jmpabs = immAbs.with(KindJmpInd)

type table [256]layout

// lazy makes something when it is needed first. A program that imports this package, and
// probes nothing, pays for no table.
type lazy struct {
	made atomic.Bool
	mu   sync.Mutex
}

// need has f run once, before the first need returns.
func (l *lazy) need(f func()) {
	if !l.made.Load() {
		l.once(f)
	}
}

func (l *lazy) once(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.made.Load() {
		f()
		l.made.Store(true)
	}
}

// layouts are the tables below. Decode and measure need them.
var layouts lazy

// oneByte is the one-byte map; common and common0F have the opcodes that measureCommon knows,
// isBad for all others.
var oneByte, common, common0F *table

// The maps by their number; nil where there is none.
var (
	legacyMaps [4]*table
	vexMaps    [32]*table
	evexMaps   [8]*table
	xopMaps    [32]*table
)

func makeLayouts() {
	oneByte = drawOneByte()
	twoByte := drawTwoByte()
	common, common0F = makeCommon(oneByte, twoByte)
	// Maps in which all opcodes look alike.
	modRMOnly, modRMImm8, modRMImm4 := same(hasModRM), same(hasModRM|immByte), same(hasModRM|immLong)
	// Map 1 of EVEX and VEX: the same immediates as behind 0F; vzeroupper and vzeroall (VEX 77)
	// have no ModRM.
	evexMap1 := same(hasModRM).set(hasModRM|immByte, 0x70, 0x71, 0x72, 0x73, 0xc2, 0xc4, 0xc5, 0xc6)
	vexMap1 := same(hasModRM).set(hasModRM|immByte, 0x70, 0x71, 0x72, 0x73, 0xc2, 0xc4, 0xc5, 0xc6).set(0, 0x77)
	legacyMaps = [4]*table{oneByte, twoByte, modRMOnly, modRMImm8}
	vexMaps = [32]*table{1: vexMap1, 2: modRMOnly, 3: modRMImm8, 5: modRMOnly, 7: modRMImm4}
	evexMaps = [8]*table{1: evexMap1, 2: modRMOnly, 3: modRMImm8, 4: drawAPXMap4(), 5: modRMOnly, 6: modRMOnly, 7: modRMImm4}
	xopMaps = [32]*table{8: modRMImm8, 9: modRMOnly, 10: modRMImm4}
}

// draw makes a table of a picture: sixteen rows of sixteen forms, a row for each
// high half of the opcode.
func draw(rows [16]string) *table {
	t := new(table)
	for hi, row := range rows {
		for lo := range 16 {
			t[hi<<4|lo] = forms[row[lo]]
		}
	}
	return t
}

// mark gives opcodes a kind.
func (t *table) mark(k Kind, opcodes ...byte) *table {
	for _, op := range opcodes {
		t[op] = t[op].with(k)
	}
	return t
}

// same makes a table whose opcodes all have one form.
func same(l layout) *table {
	t := new(table)
	for i := range t {
		t[i] = l
	}
	return t
}

// set gives opcodes a form.
func (t *table) set(l layout, opcodes ...byte) *table {
	for _, op := range opcodes {
		t[op] = l
	}
	return t
}

func span(first, last byte) []byte {
	var s []byte
	for op := int(first); op <= int(last); op++ {
		s = append(s, byte(op))
	}
	return s
}

// drawOneByte draws the one-byte map of 64-bit mode (SDM vol. 2D table A-2).
func drawOneByte() *table {
	return draw([16]string{
		"mmmmbzxxmmmmbzxp", // 00
		"mmmmbzxxmmmmbzxx", // 10
		"mmmmbzpxmmmmbzpx", // 20
		"mmmmbzpxmmmmbzpx", // 30
		"pppppppppppppppp", // 40 REX
		"................", // 50
		"xxpmppppzZbB....", // 60
		"jjjjjjjjjjjjjjjj", // 70
		"BZxBmmmmmmmmmgmp", // 80
		"..........x.....", // 90
		"oooo....bz......", // a0
		"bbbbbbbbvvvvvvvv", // b0
		"BBw.ppgge.w..bx.", // c0
		"mmmmxpx.mmmmmmmm", // d0
		"jjjjbbbbJJxj....", // e0
		"p.pp..gg......gg", // f0
	}).
		mark(KindJcc, span(0x70, 0x7f)...).
		mark(KindRet, 0xc2, 0xc3).
		mark(KindFar, 0xca, 0xcb, 0xcf).
		mark(KindInt3, 0xcc, 0xf1).
		mark(KindInt, 0xcd).
		mark(KindLoop, 0xe0, 0xe1, 0xe2, 0xe3).
		mark(KindCall, 0xe8).
		mark(KindJmp, 0xe9, 0xeb).
		mark(KindHlt, 0xf4)
}

// drawTwoByte draws the map behind 0F (table A-3). Its holes have no known length: some
// are set aside for maps yet to come.
func drawTwoByte() *table {
	return draw([16]string{
		"mgmmx.....x.xm.B", // 00
		"mmmmmmmmmmmmmmmm", // 10
		"ggggxxxxmmmmmmmm", // 20
		"......x.pxpxxxxx", // 30
		"mmmmmmmmmmmmmmmm", // 40
		"mmmmmmmmmmmmmmmm", // 50
		"mmmmmmmmmmmmmmmm", // 60
		"BBBBmmm.gmxxmmmm", // 70
		"JJJJJJJJJJJJJJJJ", // 80
		"mmmmmmmmmmmmmmmm", // 90
		"...mBmmm...mBmmm", // a0
		"mmmmmmmmgmBmmmmm", // b0
		"mmBmBBBm........", // c0
		"mmmmmmmmmmmmmmmm", // d0
		"mmmmmmmmmmmmmmmm", // e0
		"mmmmmmmmmmmmmmmm", // f0
	}).
		mark(KindSyscall, 0x05, 0x07, 0x34, 0x35).
		mark(KindUndef, 0x0b, 0xb9, 0xff).
		mark(KindJcc, span(0x80, 0x8f)...).
		mark(KindFar, 0xaa) // rsm
}

// drawAPXMap4 draws map 4 of EVEX: promoted instructions keep the immediates of their
// legacy forms (APX specification, chapter 5).
func drawAPXMap4() *table {
	return draw([16]string{
		"mmmmmmmmmmmmmmmm", // 00
		"mmmmmmmmmmmmmmmm", // 10
		"mmmmBmmmmmmmBmmm", // 20
		"mmmmmmmmmmmmmmmm", // 30
		"mmmmmmmmmmmmmmmm", // 40
		"mmmmmmmmmmmmmmmm", // 50
		"mmmmmmmmmZmBmmmm", // 60
		"mmmmmmmmmmmmmmmm", // 70
		"BZmBmmmmmmmmmmmm", // 80
		"mmmmmmmmmmmmmmmm", // 90
		"mmmmmmmmmmmmmmmm", // a0
		"mmmmmmmmmmmmmmmm", // b0
		"BBmmmmmmmmmmmmmm", // c0
		"mmmmmmmmmmmmmmmm", // d0
		"mmmmmmmmmmmmmmmm", // e0
		"mmmmmmggmmmmmmmm", // f0
	})
}
