"""The packages onnx and onnxruntime, which are imported here alone; and a model that is run."""

import importlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

FILE = "model.onnx"

# Of a model: its inputs, in the order of `FEATURES`; and its outputs, which `network_graph` makes.
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LOGITS, ENDS = "logits", ("start_logits", "end_logits")
HIDDEN, POOLED = "last_hidden_state", "pooler_output"
# Of a head for masked words: the places of the words among the tokens of a batch, an input that may
# be left out, and their logits.
POSITIONS, MASKED = "masked_positions", "masked_logits"

FEATURES = ("input_ids", "input_mask", "segment_ids")
_ERROR = 3  # onnxruntime's level of the messages that it prints


def load(name: str) -> Any:
    """Returns the package onnx or onnxruntime, or raises ValueError, which says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"an ONNX model needs the package {name}, which cannot be loaded ({error}). Install "
            "it: pip install 'bert-estimator[onnx]'"
        ) from None


def is_model(folder: str) -> bool:
    """Returns whether a directory holds an ONNX model."""
    return os.path.isfile(os.path.join(folder, FILE))


class Model:
    """Runs the ONNX model of a directory in onnxruntime, on the processors of this machine; it may
    be called from several threads at a time."""

    def __init__(self, folder: str):
        onnxruntime = load("onnxruntime")
        path = os.path.join(folder, FILE)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERROR
        # Its threads would use the processors while texts become ids, and other programs wait.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has classes of its own for damaged files
            reason = (str(error).strip().splitlines() or [repr(error)])[0]
            raise ValueError(f"{path}: cannot be opened: {reason}. Write it again") from None
        inputs = [value.name for value in self._session.get_inputs()]
        if sorted(inputs) != sorted(INPUTS):
            raise ValueError(
                f"{path}: its inputs are {', '.join(inputs)}, but must be {', '.join(INPUTS)}, as "
                "this project writes them"
            )
        # Output -> shape; None is a size that may be any.
        self.outputs = {
            value.name: [size if isinstance(size, int) else None for size in value.shape]
            for value in self._session.get_outputs()
        }

    def run(
        self, features: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Returns the outputs (None for all) for a batch: `input_ids`, `input_mask` and
        `segment_ids`, integers [B, F], and any other features; POSITIONS if the model has them."""
        inputs = {
            name: features[feature].astype(np.int64)
            for name, feature in zip(INPUTS, FEATURES, strict=True)
        }
        if POSITIONS in features:
            inputs[POSITIONS] = features[POSITIONS].astype(np.int64)
        outputs = list(outputs or self.outputs)
        return dict(zip(outputs, self._session.run(outputs, inputs), strict=True))


class Session:
    """Has the methods of a `tf.Session`: `run` is a function of what is fetched and of what is fed,
    which holds a `Model`."""

    def __init__(self, run: Callable[[Any, Mapping[str, np.ndarray]], Any]):
        self.run = run

    def close(self) -> None:
        """Frees the memory of the model."""
        del self.run


def write_quantized(folder: str) -> None:
    """Rounds the products of a directory's model to int8; the embeddings stay float32."""
    onnx, onnxruntime = load("onnx"), load("onnxruntime")
    quantization = load("onnxruntime.quantization")
    path = os.path.join(folder, FILE)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        fused = os.path.join(temporary, FILE)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERROR  # it warns that the file is for onnxruntime alone
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = fused
        # First, onnxruntime puts its own operations in the place of parts of the network, such as
        # attention, since it can round the products of these, too. So the model is for onnxruntime
        # alone.
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        model = onnx.load(fused)
        # The file imports all of onnxruntime's own domains; the unused domains go.
        used = {node.domain for node in model.graph.node}
        opsets = [opset for opset in model.opset_import if opset.domain in used]
        del model.opset_import[:]
        model.opset_import.extend(opsets)
        # Says that the graph has been prepared; without it, a warning goes to the root logger.
        onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
        onnx.save(model, fused)
        quantization.quantize_dynamic(
            fused,
            path,
            op_types_to_quantize=["Attention", "MatMul"],
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
            # Of the outputs of onnxruntime's operations, onnx does not know the type.
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
