"""What proposes kernels: substitution, exploration, connecting, packing, walks."""
