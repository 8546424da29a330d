"""Model files, and ONNX models that are split where data decides sizes."""
