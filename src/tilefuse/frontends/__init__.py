"""Floor 3: users' programs (torch, ONNX, scripts, arrays) become ir.Graph."""
