"""The suite `products`: matrix products alone and with the operators around them, beside cuBLAS, XLA and torch.compile.

Each case has two limits, as in the suite `stitched`: its bytes over the copy bandwidth of the run, and its operations over the rate that
the run measured for a large product of the same type; the larger counts. `bare.py`, `fused.py` and `grouped.py` list the cases,
`verdict.py` holds a record against the targets.
"""
