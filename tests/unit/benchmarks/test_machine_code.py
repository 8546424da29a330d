"""Reports of machine code: instructions of a step of the main loop, read from a disassembler's listing."""
from __future__ import annotations

from benchmarks.machine_code import CASES, counted, graph_of, instructions_of, main_loops

LISTING = """
.text.k:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_1:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
.L_x_2:
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R3 ;
        /*0030*/              @!P0 BRA `(.L_x_4) ;
.L_x_3:
        /*0040*/                   WARPGROUP.ARRIVE ;
        /*0050*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;
        /*0060*/                   HGMMA.64x128x16.F32 R24, gdesc[UR8], R24, gsb0 ;
        /*0070*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0080*/               @P1 BRA `(.L_x_2) ;
        /*0090*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*00a0*/               @P2 BRA `(.L_x_1) ;
        /*00b0*/                   EXIT ;
.L_x_4:
        /*00c0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R3 ;
        /*00d0*/              @!P0 BRA `(.L_x_4) ;
        /*00e0*/                   BRA `(.L_x_3) ;
"""


def test_a_step_is_the_innermost_loop_with_matrix_instructions() -> None:
    """The loop over tiles around it counts in the whole alone; a wait behind the end that branches back is no loop."""
    code = instructions_of(LISTING)
    assert len(code) == 15 and code[3].target == 12
    (loop,) = main_loops(code)
    counts = counted(loop)
    assert counts == {"barrier wait": 1, "branch": 2, "matrix start": 1, "matrix HGMMA.64x128x16.F32": 2, "matrix wait": 1}
    assert counted(code)["global load LDG.E.128"] == counted(code)["global store STG.E.128"] == 1


def test_cases_have_graphs() -> None:
    """A product of the suite, an attention and its gradients."""
    assert [len(graph_of(name).results) for name in (CASES[0], CASES[-1], f"gradients/{CASES[-1]}")] == [1, 1, 3]
