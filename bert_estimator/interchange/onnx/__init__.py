"""ONNX models: written from weights, run by onnxruntime."""
