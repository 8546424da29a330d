"""The pipelined template: products of one left operand on warpgroup instructions, operands through rings of slots, maps in registers."""
