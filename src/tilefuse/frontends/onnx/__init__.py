"""ONNX models as tensor expressions, operators by theme."""
