"""ONNX models in onnxruntime: damaged files, other programs' models, missing packages."""

import sys

import pytest

from bert_estimator.interchange.onnx import runtime

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x07" * 40])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / runtime.FILE).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/model\.onnx: cannot be opened: .*again$"):
        runtime.Model(str(tmp_path))


def test_a_model_of_another_program_is_refused(tmp_path):
    value = onnx.helper.make_tensor_value_info("pixels", onnx.TensorProto.FLOAT, [None])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None])
    node = onnx.helper.make_node("Relu", ["pixels"], ["y"])
    graph = onnx.helper.make_graph([node], "other", [value], [out])
    opsets = [onnx.helper.make_opsetid("", 12)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=7)
    onnx.save(model, str(tmp_path / runtime.FILE))
    with pytest.raises(ValueError, match="its inputs are pixels, but must be input_ids, "):
        runtime.Model(str(tmp_path))


@pytest.mark.parametrize("name", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    message = rf"needs the package {name}, .* pip install 'bert-estimator\[onnx\]'"
    with pytest.raises(ValueError, match=message):
        runtime.load(name)
