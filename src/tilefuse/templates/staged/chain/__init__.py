"""The template of products back to back: each tile of rows goes through all layers in the registers of its warpgroup."""
