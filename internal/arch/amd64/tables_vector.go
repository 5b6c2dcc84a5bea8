package amd64

// selTable has the roles of the opcodes of a map for each mandatory prefix, in the
// order of Inst.selector.
type selTable [4]roleTable

// Sets of mandatory prefixes: none, 66, F3, F2.
const (
	pNo = 1 << iota
	p66
	pF3
	pF2
	pAny = pNo | p66 | pF3 | pF2
)

// put gives opcodes their roles under the prefixes in sel.
func (t *selTable) put(sel int, do roles, opcodes ...byte) *selTable {
	for i := range t {
		if sel>>i&1 != 0 {
			t[i].put(do, opcodes...)
		}
	}
	return t
}

// What vector instructions do to memory, if their operand is memory.
const (
	vload  = xR | faults
	vstore = xW | faults
)

// The roles by encoding and map, and of the one-byte map. Inst.roles needs them. APX's REX2 and
// map 4 are unknown.
var (
	roleTables   lazy
	encRoles     [EncREX2 + 1][16]*selTable
	oneByteRoles *roleTable
)

func makeRoles() {
	oneByteRoles = makeOneByteRoles()
	amd3DNow := new(selTable).put(pAny, vload, span(0, 0xff)...)
	encRoles = [EncREX2 + 1][16]*selTable{
		EncLegacy: {Map0F: legacyRoles0F(), Map0F38: legacyRoles0F38(), Map0F3A: legacyRoles0F3A(), Map3DN: amd3DNow},
		EncVEX:    {Map0F: vexRoles0F(), Map0F38: vexRoles0F38(), Map0F3A: vexRoles0F3A()},
		EncEVEX: {
			Map0F: evexRoles0F(), Map0F38: evexRoles0F38(), Map0F3A: evexRoles0F3A(),
			Map5: evexRolesMap5(), Map6: evexRolesMap6(),
		},
		EncXOP: {MapXOP8: xopRolesMap8(), MapXOP9: xopRolesMap9()},
	}
}

// sse adds what legacy, VEX and EVEX have at the same places behind 0F.
func (t *selTable) sse() *selTable {
	return t.
		put(pAny, vload, ops(0x10, 0x17, 0x28, 0x2d, 0x51, 0x76, 0x7c, 0x7f, 0xc2, 0xc2, 0xc6, 0xc6, 0xd0, 0xfe)...).
		put(pAny, vstore, 0x11, 0x13, 0x17, 0x29, 0x2b, 0x7f, 0xd6, 0xe7).
		put(pF3|pF2, eR|faults, 0x2a).               // cvtsi2ss, cvtsi2sd
		put(pF3|pF2, xR|gW|wide|faults, 0x2c, 0x2d). // cvt(t)ss2si, cvt(t)sd2si
		put(pNo|p66, xR|fK|faults, 0x2e, 0x2f).      // ucomis, comis
		put(pAny, eR|faults, 0x6e, 0xc4).            // movd, pinsrw
		put(pNo|p66, eW|wide|faults, 0x7e).          // movd
		put(pF3, vload, 0x7e).                       // movq
		put(pAny, gW|wide|faults, 0x50, 0xc5, 0xd7). // movmskps, pextrw, pmovmskb
		put(pAny, extra|mR|mW|faults, 0xf7)          // maskmovdqu
}

// legacyRoles0F are those of the map behind 0F without VEX.
func legacyRoles0F() *selTable {
	return new(selTable).sse().
		put(pAny, faults|grouped, 0x00, 0x01, 0xae, 0xc7).
		put(pAny, eR|gW|fW|keeps|faults, 0x02, 0x03).    // lar, lsl
		put(pAny, faults, 0x06, 0x08, 0x09, 0x77).       // clts, invd, wbinvd, emms
		put(pAny, onlyAddr, 0x0d, 0x18).                 // prefetches
		put(pAny, noAddr, span(0x19, 0x1f)...).          // nops
		put(pAny, xR|xW|faults, 0x1a, 0x1b).             // bounds of MPX, nops elsewhere
		put(pAny, grouped, 0x1e).                        // rdssp, endbr64, nops
		put(pAny, extra|faults, 0x30, 0x31, 0x32, 0x33). // wrmsr, rdtsc, rdmsr, rdpmc
		put(pAny, fR|eR|gW|keeps, span(0x40, 0x4f)...).  // cmovcc
		put(p66|pF2, faults, 0x78, 0x79).                // extrq, insertq
		put(pNo, eW|gR|fW|faults, 0x78).                 // vmread
		put(pNo, eR|gR|fW|faults, 0x79).                 // vmwrite
		put(pAny, fR, span(0x80, 0x8f)...).              // jcc
		put(pAny, fR|eW|narrow, span(0x90, 0x9f)...).    // setcc
		put(pAny, stack|mW, 0xa0, 0xa8).                 // push fs, gs
		put(pAny, stack|mR|faults, 0xa1, 0xa9).          // pop fs, gs
		put(pAny, extra|faults, 0xa2).                   // cpuid
		put(pAny, eR|gR|fW, 0xa3).                       // bt
		put(pAny, eR|eW|gR|fW, 0xab, 0xb3, 0xbb).        // bts, btr, btc
		put(pAny, eR|fW|grouped, 0xba).                  // the same with an immediate
		put(pAny, eR|eW|gR|grouped, 0xa4, 0xac).         // shld, shrd
		put(pAny, eR|eW|gR|fW|extra, 0xa5, 0xad).        // the same by cl
		put(pAny, eR|gR|gW|fW, 0xaf).                    // imul
		put(pAny, eR|eW|gR|aR|aW|fK|narrow, 0xb0).       // cmpxchg
		put(pAny, eR|eW|gR|aR|aW|fK|keeps, 0xb1).        //
		put(pAny, xR|gW|keeps|faults, 0xb2, 0xb4, 0xb5). // lss, lfs, lgs
		put(pAny, eR|gW|narrowE, 0xb6, 0xbe).            // movzx, movsx
		put(pAny, eR|gW, 0xb7, 0xbf).                    //
		put(pF3, eR|gW|fK, 0xb8).                        // popcnt
		put(pAny, eR|gW|fW|keeps, 0xbc, 0xbd).           // bsf, bsr; tzcnt and lzcnt are these on old processors
		put(pAny, eR|eW|gR|gW|fK|narrow, 0xc0).          // xadd
		put(pAny, eR|eW|gR|gW|fK, 0xc1).                 //
		put(pAny, xW|gR, 0xc3).                          // movnti
		put(pAny, zR|zW, span(0xc8, 0xcf)...)            // bswap
}

// legacyRoles0F38 are those of the map behind 0F 38.
func legacyRoles0F38() *selTable {
	return new(selTable).
		put(pNo|p66, vload, ops(0x00, 0x0b, 0x10, 0x10, 0x14, 0x15, 0x1c, 0x1e, 0x20, 0x25, 0x28, 0x2b, 0x30, 0x41, 0xc8, 0xcd, 0xcf, 0xcf, 0xdb, 0xdf)...).
		put(p66, xR|fK|faults, 0x17). // ptest
		put(pNo|p66, eR|gW, 0xf0).    // movbe
		put(pNo|p66, eW|gR, 0xf1).
		put(pF2, eR|gR|gW|narrowE|wide, 0xf0). // crc32
		put(pF2, eR|gR|gW|wide, 0xf1).
		put(p66|pF3, eR|gR|gW|fR|fW|wide, 0xf6). // adcx, adox
		put(pNo, xW|gR, 0xf9).                   // movdiri
		put(p66, xR|gR|mW|faults, 0xf8)          // movdir64b
}

// legacyRoles0F3A are those of the map behind 0F 3A.
func legacyRoles0F3A() *selTable {
	return new(selTable).sse4().
		put(pNo|p66, vload, ops(0x08, 0x0f, 0x21, 0x21, 0x40, 0x42, 0x44, 0x44, 0xcc, 0xcc, 0xce, 0xcf, 0xdf, 0xdf)...)
}

// sse4 adds what legacy, VEX and EVEX have at the same places behind 0F 3A.
func (t *selTable) sse4() *selTable {
	return t.
		put(p66, eW|wide|faults, span(0x14, 0x17)...).       // pextrb, -w, -d, extractps
		put(p66, eR|faults, 0x20, 0x22).                     // pinsrb, -d
		put(p66, vload, 0x21).                               // insertps
		put(p66, xR|fK|faults|extra, 0x60, 0x61, 0x62, 0x63) // pcmpXstrX
}

// vexRoles0F are those of map 1 of VEX.
func vexRoles0F() *selTable {
	return new(selTable).sse().
		put(pAny, faults, 0x77).               // vzeroupper
		put(pAny, faults, ops(0x41, 0x4b)...). // operations on masks
		put(pAny, vload, 0x90).                // kmov
		put(pAny, vstore, 0x91).
		put(pAny, eR|faults, 0x92).
		put(pAny, gW|faults, 0x93).
		put(pAny, fK|faults, 0x98, 0x99). // kortest, ktest
		put(pNo, faults|grouped, 0xae)    // vldmxcsr, vstmxcsr
}

// vexRoles0F38 are those of map 2 of VEX.
func vexRoles0F38() *selTable {
	return new(selTable).
		put(pAny, vload, ops(0x00, 0x0d, 0x13, 0x13, 0x16, 0x16, 0x18, 0x1a, 0x1c, 0x1e, 0x20, 0x2d, 0x30, 0x41, 0x45, 0x47,
									0x50, 0x53, 0x58, 0x5a, 0x78, 0x79, 0x8c, 0x8c, 0x96, 0x9f, 0xa6, 0xaf, 0xb0, 0xb1, 0xb4, 0xbf, 0xcf, 0xcf, 0xdb, 0xdf)...).
		put(p66, xR|fK|faults, 0x0e, 0x0f, 0x17).              // vtestps, vtestpd, vptest
		put(pAny, vstore, 0x2e, 0x2f, 0x8e).                   // vmaskmov
		put(p66, xR|vectorIdx|faults, 0x90, 0x91, 0x92, 0x93). // gathers
		put(p66, grouped, span(0xe0, 0xef)...).                // cmpccxadd
		put(pNo, eR|vR|gW|fK, 0xf2).                           // andn
		put(pNo, grouped, 0xf3).                               // blsr, blsmsk, blsi
		put(pNo, eR|vR|gW|fK, 0xf5, 0xf7).                     // bzhi, bextr
		put(pF3|pF2, eR|vR|gW, 0xf5).                          // pext, pdep
		put(pF2, eR|gW|vW|extra, 0xf6).                        // mulx
		put(p66|pF3|pF2, eR|vR|gW, 0xf7)                       // shlx, sarx, shrx
}

// vexRoles0F3A are those of map 3 of VEX.
func vexRoles0F3A() *selTable {
	return new(selTable).sse4().
		put(p66, vload, ops(0x00, 0x02, 0x04, 0x06, 0x08, 0x0f, 0x18, 0x18, 0x30, 0x33, 0x38, 0x38, 0x40, 0x42, 0x44, 0x44,
							0x46, 0x46, 0x48, 0x4c, 0x5c, 0x5f, 0x68, 0x6f, 0x78, 0x7f, 0xce, 0xcf, 0xdf, 0xdf)...).
		put(p66, vstore, 0x19, 0x1d, 0x39). // vextractf128, vcvtps2ph, vextracti128
		put(pF2, eR|gW, 0xf0)               // rorx
}

// evexRoles0F are those of map 1 of EVEX.
func evexRoles0F() *selTable {
	return new(selTable).sse().
		put(pAny, vload, 0x78, 0x79, 0x7a, 0x7b).
		put(pF3|pF2, xR|gW|faults, 0x78, 0x79). // vcvt(t)ss2usi
		put(pF3|pF2, eR|faults, 0x7b)           // vcvtusi2ss
}

// evexRoles0F38 are those of map 2 of EVEX.
func evexRoles0F38() *selTable {
	return new(selTable).
		put(p66, vload, ops(0x00, 0x00, 0x04, 0x04, 0x0b, 0x0d, 0x10, 0x16, 0x18, 0x1f, 0x20, 0x2d, 0x30, 0x40, 0x42, 0x47, 0x4c, 0x4f,
			0x50, 0x55, 0x58, 0x5b, 0x62, 0x62, 0x64, 0x66, 0x70, 0x73, 0x75, 0x79, 0x7d, 0x7f, 0x83, 0x83, 0x88, 0x89, 0x8d, 0x8d, 0x8f, 0x8f,
												0x96, 0x9f, 0xa6, 0xaf, 0xb4, 0xbf, 0xc4, 0xc4, 0xc8, 0xc8, 0xca, 0xcd, 0xcf, 0xcf, 0xdc, 0xdf)...).
		put(pF3, vstore, ops(0x10, 0x15, 0x20, 0x25, 0x30, 0x35)...).            // vpmov down
		put(pF3, vload, ops(0x26, 0x2a, 0x38, 0x3a, 0x52, 0x52, 0x72, 0x72)...). // between vectors and masks; bfloat16
		put(pF2, vload, 0x52, 0x53, 0x68, 0x72, 0x9a, 0x9b, 0xaa, 0xab).         // 4vnniw, vp2intersect, bfloat16, 4fmaps
		put(p66, vstore, 0x63, 0x8a, 0x8b).                                      // vcompress
		put(p66, eR|faults, 0x7a, 0x7b, 0x7c).                                   // vpbroadcast from a register
		put(p66, xR|vectorIdx|faults, 0x90, 0x91, 0x92, 0x93).                   // gathers
		put(p66, xW|vectorIdx|faults, 0xa0, 0xa1, 0xa2, 0xa3).                   // scatters
		put(p66, xR|vectorIdx|faults, 0xc6, 0xc7)                                // prefetches of gathers
}

// evexRoles0F3A are those of map 3 of EVEX.
func evexRoles0F3A() *selTable {
	return new(selTable).sse4().
		put(pAny, vload, ops(0x08, 0x0a, 0x26, 0x27, 0x56, 0x57, 0x66, 0x67, 0xc2, 0xc2)...).
		put(p66, vload, ops(0x00, 0x01, 0x03, 0x05, 0x0b, 0x0b, 0x0f, 0x0f, 0x18, 0x18, 0x1a, 0x1a, 0x1e, 0x1f, 0x23, 0x23, 0x25, 0x25, 0x38, 0x38, 0x3a, 0x3a, 0x3e, 0x3f,
								0x42, 0x44, 0x50, 0x51, 0x54, 0x55, 0x70, 0x73, 0xce, 0xcf)...).
		put(p66, vstore, 0x19, 0x1b, 0x1d, 0x39, 0x3b) // vextract, vcvtps2ph
}

// evexRolesMap5 are those of half precision.
func evexRolesMap5() *selTable {
	return new(selTable).
		put(pAny, vload, ops(0x10, 0x10, 0x1d, 0x1d, 0x51, 0x51, 0x58, 0x5f, 0x78, 0x7d)...).
		put(pF3, vstore, 0x11).
		put(pF3, eR|faults, 0x2a, 0x7b).                // vcvtsi2sh, vcvtusi2sh
		put(pF3, xR|gW|faults, 0x2c, 0x2d, 0x78, 0x79). // vcvt(t)sh2si, vcvt(t)sh2usi
		put(pNo, xR|fK|faults, 0x2e, 0x2f).             // vucomish, vcomish
		put(p66, eR|faults, 0x6e).                      // vmovw
		put(p66, eW|faults, 0x7e)
}

// evexRolesMap6 are those of half precision.
func evexRolesMap6() *selTable {
	return new(selTable).
		put(pAny, vload, ops(0x13, 0x13, 0x2c, 0x2d, 0x42, 0x43, 0x4c, 0x4f, 0x56, 0x57, 0x96, 0x9f, 0xa6, 0xaf, 0xb6, 0xbf, 0xd6, 0xd7)...)
}

// xopRolesMap8 and xopRolesMap9 are those of the vector instructions of XOP (APM vol. 4); the rest
// of these maps works on general registers.
func xopRolesMap8() *selTable {
	return new(selTable).put(pNo, vload, ops(0x85, 0x87, 0x8e, 0x8f, 0x95, 0x97, 0x9e, 0x9f, 0xa2, 0xa3, 0xa6, 0xa6, 0xb6, 0xb6,
		0xc0, 0xc3, 0xcc, 0xcf, 0xec, 0xef)...)
}

func xopRolesMap9() *selTable {
	return new(selTable).put(pNo, vload, ops(0x80, 0x83, 0x90, 0x9b, 0xc1, 0xc3, 0xc6, 0xc7, 0xcb, 0xcb, 0xd1, 0xd3, 0xd6, 0xd7, 0xdb, 0xdb,
		0xe1, 0xe3)...)
}

// implicit0F adds registers for instructions behind 0F, maskmovdqu of VEX too.
func (r *resolver) implicit0F() {
	const dxAX = setDX | setAX
	reg := r.in.ModRM >> 3 & 7
	switch r.in.Opcode {
	case 0x01: // xgetbv, rdtscp
		r.timeOrXCR()
	case 0x30: // wrmsr
		r.use(dxAX|setCX, 0)
	case 0x31: // rdtsc
		r.use(0, dxAX)
	case 0x32, 0x33: // rdmsr, rdpmc
		r.use(setCX, dxAX)
	case 0xa2: // cpuid
		r.use(setAX|setCX, dxAX|setBX|setCX)
	case 0xa5, 0xad: // shifts by cl
		r.use(setCX, 0)
	case 0xc7:
		if reg != 1 { // xsavec and its like
			r.use(dxAX, 0)
			return
		}
		r.use(dxAX|setBX|setCX, 0) // cmpxchg16b
		r.Writes |= dxAX
	case 0xae: // xsave and its like
		r.use(dxAX, 0)
	case 0xf7: // maskmovdqu
		r.use(setDI, 0)
	}
}

func (r *resolver) timeOrXCR() {
	if r.in.ModRM == 0xd0 {
		r.use(setCX, setAX|setDX)
		return
	}
	r.use(0, setAX|setCX|setDX)
}

// implicitVector adds registers for mulx and the string comparisons of SSE4.2.
func (r *resolver) implicitVector() {
	switch op := r.in.Opcode; {
	case r.in.Map == Map0F38:
		r.use(setDX, 0)
	case op == 0x60:
		r.use(setAX|setDX, 0)
	case op == 0x61:
		r.use(setAX|setDX, setCX)
	case op == 0x63:
		r.use(0, setCX)
	}
}
