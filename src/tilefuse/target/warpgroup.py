"""Shapes of warpgroup instructions: columns, operands, the elements of a lane, registers that warpgroups give each other.

A lane of a warpgroup holds, of 64 rows and 8 columns of sums, two neighbouring columns in each of two rows that are 8 apart; four lanes
share a row. Source: PTX ISA, wgmma (shapes, accumulators) and setmaxnreg.
"""
from __future__ import annotations

# Most columns of the sums of one instruction, and their step.
MOST_COLUMNS, COLUMN_STEP = 256, 8
# Elements of a lane in 64 rows and 8 columns: rows by neighbouring columns.
LANE_ELEMENTS, ROW_HALVES, NEIGHBOURS = 4, 2, 2
# Rows between a lane's two rows, and lanes that share a row.
HALF_ROWS, ROW_LANES = 8, 4
# Only operands whose elements have so many bits may be contiguous along rows or columns of the product.
TURNED_BITS = 16
# Registers of a thread that warpgroups give each other: at least, at most, and their step.
LEAST_REGISTERS, MOST_REGISTERS, REGISTER_STEP = 24, 256, 8
