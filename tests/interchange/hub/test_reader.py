"""TF Hub's modules are read whichever TensorFlow they are of."""

import json
import shutil

import fixtures
import hub_modules
import numpy as np
import pytest
import tensorflow as tf2

import run_classifier
from bert_estimator.interchange import open_source
from bert_estimator.interchange.hub import reader

LAYOUTS = {
    "tf2": hub_modules.write_tf2,
    "first_tf2": lambda *args: hub_modules.write_tf2(*args, first=True),
    "tf1": hub_modules.write_tf1,
}


@pytest.fixture(scope="module")
def original():
    """Returns (source, its weights) of a BERT with the pretraining heads."""
    source = open_source(str(fixtures.TF1))
    return source, fixtures.weights_of(source)


@pytest.fixture(scope="module")
def cased(tmp_path_factory):
    """A vocabulary whose name is not vocab.txt."""
    path = tmp_path_factory.mktemp("vocabulary") / "cased_words.txt"
    shutil.copy(fixtures.TF1 / "vocab.txt", path)
    return path


@pytest.fixture(scope="module")
def modules(tmp_path_factory, original, cased):
    """Returns layout -> directory of a module of a cased BERT, to be read only."""
    source, weights = original
    folder = tmp_path_factory.mktemp("modules")
    return {
        layout: write(folder / layout, source.config, weights, cased, False)
        for layout, write in LAYOUTS.items()
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_module_is_read_without_a_bert_config(original, modules, layout):
    source, weights = original
    module = modules[layout]
    found = open_source(str(module))
    assert found.format == "hub"
    assert found.config == source.config
    assert found.vocab_file == str(module / "assets" / "cased_words.txt")
    assert found.do_lower_case is False
    names = set(weights)
    if layout != "tf1":
        names = {name for name in names if "seq_relationship" not in name}
    assert set(found.shapes) == names
    for name in names:
        value = found.read(name)
        np.testing.assert_array_equal(value, weights[name], err_msg=name)
        assert list(value.shape) == found.shapes[name]
    # The path of the weights within it means the module, too.
    assert open_source(str(module / "variables" / "variables")).config == source.config


@pytest.mark.parametrize("layout", ["tf2", "tf1"])
def test_an_archive_of_a_module(tmp_path, original, modules, layout):
    source, _ = original
    shutil.copytree(modules[layout], tmp_path / "module")
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "module")
    found = open_source(str(tmp_path / "packed.zip"))
    assert (found.config, found.do_lower_case) == (source.config, False)
    shutil.make_archive(str(tmp_path / "packed"), "gztar", tmp_path, "module")
    with pytest.raises(ValueError, match=r"packed\.tar\.gz: is a tar archive; unpack it"):
        open_source(str(tmp_path / "packed.tar.gz"))


def test_the_graph_says_which_gelu_and_the_module_which_casing(tmp_path, original, cased):
    source, weights = original
    arguments = (tmp_path / "module", source.config, weights, cased, True)
    hub_modules.write_tf2(*arguments, exact_gelu=True)
    found = open_source(str(tmp_path / "module"))
    assert (found.config.hidden_act, found.do_lower_case) == ("gelu_erf", True)


@pytest.mark.parametrize("layout", ["tf2", pytest.param("tf1", marks=pytest.mark.slow)])
def test_fine_tuning_takes_network_vocabulary_and_casing_from_the_module(
    tmp_path, capsys, original, modules, layout
):
    """The run resumes, too, and a flag that says otherwise is refused."""
    source, _ = original
    lines = [f"Word{i} Word{35 - i}\t{'yes' if i % 2 else 'no'}" for i in range(16)]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence1\tlabel", *lines]) + "\n")
    flags = [
        f"--init_checkpoint={modules[layout]}", f"--train_file={tmp_path}/train.tsv",
        f"--output_dir={tmp_path}/run", "--max_seq_length=8", "--do_train",
        "--train_batch_size=8",
    ]  # fmt: skip
    assert run_classifier.main(["run_classifier.py", *flags, "--do_lower_case=true"]) == 2
    assert "To keep capitals, give --nodo_lower_case." in capsys.readouterr().err
    for epochs in (1, 2):
        argv = ["run_classifier.py", *flags, f"--num_train_epochs={epochs}"]
        assert run_classifier.main(argv) == 0
    run = open_source(str(tmp_path / "run"))
    assert (run.config, run.do_lower_case) == (source.config, False)
    vocabulary = (tmp_path / "run" / "vocab.txt").read_bytes()
    assert vocabulary == (fixtures.TF1 / "vocab.txt").read_bytes()
    query = "bert/encoder/layer_0/attention/self/query/kernel"
    difference = np.max(np.abs(run.read(query) - source.read(query)))
    assert 0 < difference < 1e-2  # a few steps from the module's weights


def changed(name, change):
    """Returns a function that changes the bytes of a module's file."""
    return lambda module: (module / name).write_bytes(change((module / name).read_bytes()))


GRAPH, INDEX = "saved_model.pb", "variables/variables.index"
DAMAGES = [
    (
        "tf2",
        changed(GRAPH, lambda data: data[: len(data) // 2]),
        r"saved_model\.pb: is damaged: it is not a SavedModel",
    ),
    ("tf2", changed(GRAPH, lambda data: b""), r"\.pb: is damaged: it does not hold a graph"),
    (
        "tf2",
        lambda module: shutil.rmtree(module / "variables"),
        "is a SavedModel without weights, such as TF Hub's modules that prep",
    ),
    (
        "tf1",
        lambda module: (module / "tfhub_module.pb").unlink(),
        r"but not a module of TF Hub's: tfhub_module\.pb, which marks",
    ),
    ("tf2", changed(INDEX, lambda data: data[:50]), "the checkpoint cannot be read"),
]


@pytest.mark.parametrize(("layout", "change", "message"), DAMAGES)
def test_what_cannot_be_read_says_why(tmp_path, modules, layout, change, message):
    module = shutil.copytree(modules[layout], tmp_path / "module")
    change(module)
    with pytest.raises(ValueError, match=message):
        open_source(str(module))


@pytest.mark.parametrize("length", [0, 100, 9000])
def test_a_short_file_of_weights_is_an_error_of_the_module(tmp_path, modules, length):
    """TensorFlow raises IndexError for a short read."""
    module = shutil.copytree(modules["tf2"], tmp_path / "module")
    data = module / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"module: .* cannot be read: "):
        source = open_source(str(module))
        for name in source.shapes:
            source.read(name)


def test_a_damaged_constant_of_the_graph_does_not_count(tmp_path, modules):
    module = shutil.copytree(modules["tf1"], tmp_path / "module")
    graph = reader._read_model(str(module / "saved_model.pb"))
    for meta_graph in graph.meta_graphs:
        for node in meta_graph.graph_def.node:
            if node.op == "Const":
                node.attr["value"].tensor.dtype = 0
    (module / "saved_model.pb").write_bytes(graph.SerializeToString())
    with pytest.raises(ValueError, match="do not show num_attention_heads, hidden_act of a BERT"):
        open_source(str(module))


@pytest.mark.parametrize("shape", [[2, 3, 4], [[2, 3], [4, 2]], 4])
def test_a_shape_that_is_not_of_heads_does_not_count(tmp_path, modules, shape):
    module = shutil.copytree(modules["tf1"], tmp_path / "module")
    model = reader._read_model(str(module / "saved_model.pb"))
    for meta_graph in model.meta_graphs:
        nodes = {node.name: node for node in meta_graph.graph_def.node}
        for node in nodes.values():
            if "attention/self" in node.name and node.op == "Reshape":
                new = meta_graph.graph_def.node.add(op="Const", name=f"{node.name}/other_shape")
                new.attr["value"].tensor.CopyFrom(tf2.make_tensor_proto(shape))
                node.input[1] = new.name
    (module / "saved_model.pb").write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="do not show num_attention_heads of a BERT"):
        open_source(str(module))


def test_a_module_that_is_not_berts(tmp_path):
    other = tf2.Module()
    other.table = tf2.Variable(np.ones([3, 2], np.float32), name="embeddings/table")
    tf2.saved_model.save(other, str(tmp_path / "nnlm"))
    message = "nnlm: is a module, but not BERT's: .* Its variables begin with embeddings/table$"
    with pytest.raises(ValueError, match=message):
        open_source(str(tmp_path / "nnlm"))


def test_what_a_module_does_not_show_is_asked_for(tmp_path, original, modules):
    """The graph does not have an activation; a bert_config.json among the assets names it."""
    source, _ = original
    module = shutil.copytree(modules["tf2"], tmp_path / "m")
    graph = reader._read_model(str(module / "saved_model.pb"))
    del graph.meta_graphs[0].graph_def.library.function[:]
    (module / "saved_model.pb").write_bytes(graph.SerializeToString())
    message = r"do not show hidden_act of a BERT\. If the module is BERT's, put a"
    with pytest.raises(ValueError, match=message):
        open_source(str(module))
    values = {**source.config.to_dict(), "hidden_act": "relu"}
    (module / "assets" / "bert_config.json").write_text(json.dumps(values))
    assert open_source(str(module)).config.hidden_act == "relu"
    values["num_hidden_layers"] = 3
    (module / "assets" / "bert_config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"layer_2/attention/self/query/kernel \[8, 8\]: missing"):
        open_source(str(module))


def test_a_vocabulary_elsewhere_is_refused(tmp_path, modules):
    module = shutil.copytree(modules["tf2"], tmp_path / "m")
    graph = reader._read_model(str(module / "saved_model.pb"))
    graph.meta_graphs[0].asset_file_def[0].filename = "../../secret.txt"
    (module / "saved_model.pb").write_bytes(graph.SerializeToString())
    with pytest.raises(ValueError, match=r"its vocabulary: .*secret"):
        open_source(str(module))
