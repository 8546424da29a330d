"""Floor 3: what users bring (torch, ONNX, scripts, arrays) becomes ir.Graph."""
