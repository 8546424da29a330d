"""The pipelined template: one product on warpgroup instructions, operands through rings of slots, the maps behind it in registers."""
