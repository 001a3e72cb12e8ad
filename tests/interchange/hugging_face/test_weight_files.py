"""Hugging Face's BERT, against what transformers wrote and computed."""

import dataclasses
import json

import fixtures
import numpy as np
import pytest

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import open_source
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.interchange.hugging_face import config_json
from bert_estimator.interchange.weights import logits_of
from bert_estimator.tokenization import SPECIAL_TOKENS, train_sentencepiece, write_vocab


def outputs(folder):
    """What the directory's model says to the oracle's batch."""
    source = open_source(str(folder))
    batch = dict(np.load(fixtures.DATA / "hf_pretraining" / "batch.npz"))
    return logits_of(source.config, fixtures.weights_of(source), batch)


@pytest.mark.parametrize("model", fixtures.HUGGING_FACE)
def test_logits_are_those_of_transformers(model):
    expected = np.load(fixtures.DATA / model / "logits.npz")
    actual = outputs(fixtures.DATA / model)
    assert set(expected) - set(actual) == set()
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("model", fixtures.HUGGING_FACE)
def test_what_is_written_is_what_transformers_wrote(model, tmp_path):
    source = open_source(str(fixtures.DATA / model))
    fixtures.write_hugging_face(tmp_path, source)
    written, expected = fixtures.tensors_of(tmp_path), fixtures.tensors_of(fixtures.DATA / model)
    np.testing.assert_equal(written, expected)
    config = json.loads((tmp_path / "config.json").read_text())
    theirs = json.loads((fixtures.DATA / model / "config.json").read_text())
    assert config_json.read_config(str(tmp_path / "config.json")) == source.config
    for key in ("architectures", "id2label", "label2id", "layer_norm_eps", "model_type"):
        assert config.get(key) == theirs.get(key)
    assert (tmp_path / "vocab.txt").read_bytes() == (
        fixtures.DATA / model / "vocab.txt"
    ).read_bytes()


@pytest.mark.parametrize(
    ("theirs", "ours", "written"),
    [
        ("gelu", "gelu_erf", "gelu"),
        ("gelu_python", "gelu_erf", "gelu"),
        ("gelu_new", "gelu", "gelu_new"),
        ("gelu_pytorch_tanh", "gelu", "gelu_new"),
        ("gelu_accurate", "gelu", "gelu_new"),
        ("relu", "relu", "relu"),
        ("swish", "silu", "silu"),
    ],
)
def test_activations_are_translated(tmp_path, theirs, ours, written):
    folder = fixtures.changed(tmp_path, "hf_encoder", hidden_act=theirs)
    source = open_source(str(folder))
    assert source.config.hidden_act == ours
    fixtures.write_hugging_face(tmp_path, source)
    assert json.loads((tmp_path / "config.json").read_text())["hidden_act"] == written


def test_every_activation_has_a_name_there():
    from bert_estimator.bert_config import HIDDEN_ACTS

    assert set(config_json.HIDDEN_ACTS) == set(HIDDEN_ACTS)


def test_defaults_of_the_configuration_are_those_of_transformers(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    assert config_json.read_config(str(tmp_path / "config.json")) == BertConfig(
        vocab_size=30522, hidden_act="gelu_erf"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"layer_norm_eps": 0}, "layer_norm_eps=0 must be a number above 0"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key', b"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quantized weights are not s"),
        ({"hidden_size": 15}, "hidden_size=15 is not a multiple of num_attention_heads=2"),
        ({"model_type": "albert", "inner_group_num": 2}, "inner_group_num=2, but the network"),
        ({"model_type": "albert", "embedding_size": 16}, "embedding_size and hidden_size are b"),
    ],
)
def test_networks_that_cannot_be_built_are_refused(tmp_path, config, message):
    folder = fixtures.changed(tmp_path, "hf_encoder", **config)
    with pytest.raises(ValueError, match=f"^{folder}/config.json: {message}"):
        open_source(str(folder))


def test_a_missing_configuration(tmp_path):
    folder = fixtures.changed(tmp_path, "hf_encoder")
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=f"^{folder}/config.json: is missing beside the weights"):
        open_source(str(folder))


@pytest.mark.parametrize("model", ["hf_encoder", "hf_classifier"])
@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_a_model_that_was_saved_in_its_wrapper(tmp_path, model, wrapper):
    """As by the state_dict of what DistributedDataParallel and torch.compile return."""
    folder = fixtures.changed(
        tmp_path, model, lambda tensors: {f"{wrapper}{name}": v for name, v in tensors.items()}
    )
    expected = open_source(str(fixtures.DATA / model))
    source = open_source(str(folder))
    np.testing.assert_equal(fixtures.weights_of(source), fixtures.weights_of(expected))


def test_copies_and_position_ids_of_older_files_are_left_out(tmp_path):
    def older(tensors):
        def rename(name):
            old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
            for today, before in old.items():
                name = name.replace(today, before)
            return name

        return {
            **{rename(name): value for name, value in tensors.items()},
            "bert.embeddings.position_ids": np.arange(24)[np.newaxis],
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
        }

    folder = fixtures.changed(tmp_path, "hf_pretraining", older)
    source, today = open_source(str(folder)), open_source(str(fixtures.DATA / "hf_pretraining"))
    assert source.left_out == (
        "bert.embeddings.position_ids",
        "cls.predictions.decoder.bias",
        "cls.predictions.decoder.weight",
    )
    np.testing.assert_equal(fixtures.weights_of(source), fixtures.weights_of(today))


def test_a_decoder_of_its_own_is_refused(tmp_path):
    def untie(tensors):
        table = tensors["bert.embeddings.word_embeddings.weight"] + 1
        return {**tensors, "cls.predictions.decoder.weight": table}

    folder = fixtures.changed(tmp_path, "hf_pretraining", untie)
    message = "cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight"
    with pytest.raises(ValueError, match=f"^{folder}: {message}"):
        open_source(str(folder))


def tokenizer_json(kind, vocab, added):
    tokens = [{"content": token, "id": number} for token, number in added.items()]
    values = {**fixtures.TOKENIZER_JSON, "added_tokens": tokens}
    return json.dumps({**values, "model": {**values["model"], "type": kind, "vocab": vocab}})


def with_tokenizer(tmp_path, text):
    folder = fixtures.changed(tmp_path, "hf_encoder")
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    return folder


def test_a_vocabulary_in_tokenizer_json(tmp_path):
    """As transformers 5 saves it; the numbers count, not the order, and added tokens are of it."""
    vocab = {"été": 2, "[PAD]": 0, "##s": 1}
    added = {"[PAD]": 0, "[MASK]": 3}
    folder = with_tokenizer(tmp_path, tokenizer_json("WordPiece", vocab, added))
    with open(open_source(str(folder)).vocab_file, encoding="utf-8") as reader:
        assert reader.read() == "[PAD]\n##s\nété\n[MASK]\n"


def test_a_tokenizer_of_another_kind_gives_no_vocabulary(tmp_path):
    folder = with_tokenizer(tmp_path, tokenizer_json("Unigram", [["a", -1.0]], {}))
    assert open_source(str(folder)).vocab_file is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "the key 'model' is missing"),
        (tokenizer_json("WordPiece", {"a": 1}, {}), "of its 1 tokens, none has the id 0"),
        (tokenizer_json("WordPiece", {"a\nb": 0}, {}), r"the token 'a\\nb' holds a line end"),
    ],
)
def test_a_tokenizer_that_is_none(tmp_path, text, message):
    folder = with_tokenizer(tmp_path, text)
    with pytest.raises(ValueError, match=f"^{folder}/tokenizer.json: {message}"):
        open_source(str(folder))


def without(*names):
    return lambda tensors: {k: v for k, v in tensors.items() if k not in names}


@pytest.mark.parametrize(
    "names",
    [
        ["bert.embeddings.more.weight", "more_outputs.bias"],
        ["module.x"],  # a prefix of some tensors is not a wrapper
    ],
)
def test_unknown_tensors_are_named(tmp_path, names):
    extra = {name: np.ones(1, np.float32) for name in names}
    folder = fixtures.changed(tmp_path, "hf_pretraining", lambda tensors: {**tensors, **extra})
    message = f"holds tensors that are unknown here: {', '.join(names)}"
    with pytest.raises(ValueError, match=f"^{folder}: {message}$"):
        open_source(str(folder))


def test_heads_that_no_model_of_transformers_has_together(tmp_path):
    source = open_source(str(fixtures.DATA / "hf_classifier"))
    weights = fixtures.weights_of(source)
    weights["cls/seq_relationship/output_weights"] = np.ones([2, 16], np.float32)
    weights["cls/seq_relationship/output_bias"] = np.ones([2], np.float32)
    with pytest.raises(ValueError, match="heads cls/seq_relationship, output_weights in one model"):
        fixtures.write_hugging_face(tmp_path, source, weights)


@pytest.mark.parametrize(
    ("words", "recorded", "casing"),
    [
        (["ete", "##s"], None, (True, None)),
        (["été", "##s"], None, (True, False)),
        (["Summer"], None, (False, None)),
        (["Привет", "мир"], None, (False, None)),
        (["A", *(f"a{i}" for i in range(30))], None, (True, None)),  # a capital that strayed in
        (["été"], (False, None), (False, None)),
        (["ete"], (False, True), (False, True)),
        (["été"], (True, False), (True, False)),
        (["été"], (True, None), (True, None)),
        (["A", *(f"a{i}" for i in range(30))], (False, None), (False, None)),
    ],
)
def test_the_casing_is_as_recorded_or_told_by_the_vocabulary(tmp_path, words, recorded, casing):
    source = open_source(str(fixtures.DATA / "hf_encoder"))
    vocab_file = tmp_path / "words.txt"
    write_vocab([*SPECIAL_TOKENS, *words], str(vocab_file))
    lower, strip = recorded or (None, None)
    source = dataclasses.replace(
        source, vocab_file=str(vocab_file), do_lower_case=lower, strip_accents=strip
    )
    fixtures.write_hugging_face(tmp_path, source)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "do_lower_case": casing[0],
        "strip_accents": casing[1],
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": 24,
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    assert open_source(str(tmp_path)).casing == casing


@pytest.mark.parametrize(
    ("trained_on", "written"), [(None, 24), (7, 7), (24, 24), (512, 24)], ids=str
)
def test_texts_are_cut_to_the_length_trained_on_and_to_the_positions(tmp_path, trained_on, written):
    source = open_source(str(fixtures.DATA / "hf_encoder"))
    fixtures.write_hugging_face(tmp_path, dataclasses.replace(source, max_seq_length=trained_on))
    values = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert values["model_max_length"] == written
    assert open_source(str(tmp_path)).max_seq_length == written


ODD_LABELS = ("LABEL_2", "a\u2028b\nc", "")


@pytest.mark.parametrize(
    ("kind", "labels", "outputs", "problem_type"),
    [
        ("classification", ODD_LABELS, 3, "single_label_classification"),
        ("multi_label", ODD_LABELS, 3, "multi_label_classification"),
        ("multi_label", ("alone",), 1, "multi_label_classification"),
        ("regression", (), 1, "regression"),
        (None, (), 3, "single_label_classification"),
        (None, (), 1, "regression"),
    ],
)
def test_the_meaning_of_the_outputs_is_written_and_read(
    tmp_path, kind, labels, outputs, problem_type
):
    """Each format is written from the other."""
    (tmp_path / "hf").mkdir()
    (tmp_path / "tf1").mkdir()
    source = open_source(str(fixtures.DATA / "hf_classifier"))
    weights = fixtures.weights_of(source)
    for name in ("output_weights", "output_bias"):
        weights[name] = weights[name][:outputs]
    source = dataclasses.replace(source, kind=kind, labels=labels, do_lower_case=False)
    tf1_checkpoint.write(str(tmp_path / "tf1"), source, weights)
    between = open_source(str(tmp_path / "tf1"))
    assert (between.kind, between.labels, between.do_lower_case) == (kind, labels, False)
    fixtures.write_hugging_face(tmp_path / "hf", between)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    names = labels or [f"LABEL_{i}" for i in range(outputs)]
    assert config["problem_type"] == problem_type
    assert config["id2label"] == {str(i): name for i, name in enumerate(names)}
    assert config["label2id"] == {name: i for i, name in enumerate(names)}
    back = open_source(str(tmp_path / "hf"))
    assert (back.labels, back.do_lower_case) == (labels, False)
    kinds = {"single_label_classification": "classification", "regression": "regression"}
    assert back.kind == (kind or kinds[problem_type])


def test_labels_in_another_order_than_the_defaults_are_kept(tmp_path):
    names = {"0": "LABEL_1", "1": "LABEL_0", "2": "LABEL_2"}
    folder = fixtures.changed(tmp_path, "hf_classifier", id2label=names)
    assert open_source(str(folder)).labels == ("LABEL_1", "LABEL_0", "LABEL_2")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"0": "a", "1": "b"}, "2 labels, but the number of the classifier's outputs, which ne"),
        (
            {str(i): f"LABEL_{i}" for i in range(5)},
            "5 labels, but the number of the classifier's outputs, which need a label each, is 3. "
            "Correct id2label, or take it out of the file",
        ),
        (
            {"1": "a", "2": "b", "3": "c"},
            "lacks the key '0'; its keys must be the numbers of the outputs, 0 to 2. Correct id2la",
        ),
        (
            {"0": "a", "1": "b", "2": "a"},
            'the outputs 0 and 2 have the same label, "a". Give each output a label of its own',
        ),
        ({"0": 7, "1": "b", "2": "7"}, 'the outputs 0 and 2 have the same label, "7". Give each'),
    ],
)
def test_labels_that_do_not_name_each_output_are_refused(tmp_path, names, message):
    folder = fixtures.changed(tmp_path, "hf_classifier", id2label=names)
    with pytest.raises(ValueError, match=f"^{folder}/config.json: id2label: {message}"):
        open_source(str(folder))


@pytest.mark.parametrize("names", [None, {}, {str(i): f"LABEL_{i}" for i in range(3)}])
def test_labels_may_be_missing_or_the_defaults(tmp_path, names):
    folder = fixtures.changed(tmp_path, "hf_classifier", id2label=names)
    assert open_source(str(folder)).labels == ()


@pytest.mark.parametrize(
    ("model", "name", "allowed"),
    [
        (
            "hf_classifier",
            "BertForMultipleChoice",
            "'bert', allowed are BertForPreTraining, BertForMaskedLM, "
            "BertForNextSentencePrediction, BertForSequenceClassification, "
            "BertForQuestionAnswering, BertModel, BertForTokenClassification. If the model is one "
            "of these, write its class there",
        ),
        (
            "hf_albert",
            "AlbertForMultipleChoice",
            "'albert', allowed are AlbertForPreTraining, AlbertForMaskedLM, "
            "AlbertForSequenceClassification, AlbertForQuestionAnswering, AlbertModel, ",
        ),
        (
            "hf_electra",
            "ElectraForMultipleChoice",
            "'electra', allowed are ElectraForQuestionAnswering, ElectraModel, "
            "ElectraForTokenClassification, ElectraForPreTraining. If",
        ),
    ],
)
def test_classes_that_are_not_known_are_refused(tmp_path, model, name, allowed):
    folder = fixtures.changed(tmp_path, model, architectures=[name])
    message = f'architectures: "{name}" is not known here; with model_type={allowed}'
    with pytest.raises(ValueError, match=f"^{folder}/config.json: {message}"):
        open_source(str(folder))


@pytest.mark.parametrize("names", [None, [], ["BertForTokenClassification"]])
def test_classes_may_be_missing(tmp_path, names):
    folder = fixtures.changed(tmp_path, "hf_classifier", architectures=names, problem_type=None)
    assert open_source(str(folder)).kind == ("tagging" if names else None)


@pytest.mark.parametrize(("outputs", "kind"), [(3, "classification"), (1, "regression")])
def test_a_class_for_sequences_does_not_label_words(tmp_path, outputs, kind):
    """Without a problem_type, transformers has these defaults."""

    def first_outputs(tensors):
        return {
            name: value[:outputs] if name.startswith("classifier.") else value
            for name, value in tensors.items()
        }

    changes = {"architectures": ["BertForSequenceClassification"], "problem_type": None}
    labels = {str(i): f"label {i}" for i in range(outputs)}
    folder = fixtures.changed(
        tmp_path, "hf_classifier", first_outputs, **changes, id2label=labels, label2id=None
    )
    assert open_source(str(folder)).kind == kind


def without_pooler(tensors):
    return {name: value for name, value in tensors.items() if "pooler" not in name}


def test_a_classifier_without_a_pooler_labels_words(tmp_path):
    """Transformers would give any other a pooler of random weights."""
    changes = {"architectures": None, "problem_type": None}
    folder = fixtures.changed(tmp_path, "hf_classifier", without_pooler, **changes)
    source = open_source(str(folder))
    assert source.kind == "tagging"
    (tmp_path / "hf").mkdir()
    fixtures.write_hugging_face(tmp_path / "hf", source)
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert written["architectures"] == ["BertForTokenClassification"]
    source = dataclasses.replace(source, kind="classification")
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="would give the heads output_weights a pooler of random"):
        fixtures.write_hugging_face(tmp_path / "other", source)


def test_numbers_may_have_names(tmp_path):
    number = {"problem_type": "regression", "id2label": {"0": "sad", "1": "odd", "2": "new"}}
    source = open_source(str(fixtures.changed(tmp_path, "hf_classifier", **number)))
    assert (source.labels, source.output_names, source.kind) == (
        (),
        ("sad", "odd", "new"),
        "regression",
    )


def test_a_model_without_a_classifier_has_no_labels(tmp_path):
    meaning = {"id2label": {"0": "a"}, "problem_type": "regression"}
    folder = fixtures.changed(tmp_path, "hf_encoder", **meaning)
    source = open_source(str(folder))
    assert (source.labels, source.kind) == ((), None)
    (tmp_path / "hf").mkdir()
    fixtures.write_hugging_face(tmp_path / "hf", source)
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert not {"id2label", "label2id", "problem_type"} & set(written)


def test_labels_that_are_not_one_for_each_output_are_refused(tmp_path):
    source = open_source(str(fixtures.DATA / "hf_classifier"))
    message = "the classifier has 3 outputs, but 2 labels are beside it: a, b. Correct the labels"
    with pytest.raises(ValueError, match=message):
        fixtures.write_hugging_face(tmp_path, dataclasses.replace(source, labels=("a", "b")))


def test_the_padding_token_is_the_vocabularys(tmp_path):
    words = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"]
    write_vocab(words, str(tmp_path / "words.txt"))
    source = open_source(str(fixtures.DATA / "hf_encoder"))
    source = dataclasses.replace(source, vocab_file=str(tmp_path / "words.txt"))
    fixtures.write_hugging_face(tmp_path, source)
    assert json.loads((tmp_path / "config.json").read_text())["pad_token_id"] == 4


@pytest.mark.parametrize(
    ("settings", "casing"),
    [
        ({"do_lower_case": True, "strip_accents": False}, (True, False)),  # German models
        ({"strip_accents": False}, (True, False)),
        ({"strip_accents": True}, (True, None)),
        ({"do_lower_case": False, "strip_accents": True}, (False, True)),
        ({"do_lower_case": True, "strip_accents": True}, (True, None)),
        ({"do_lower_case": False, "strip_accents": False}, (False, None)),
        ({"do_lower_case": True, "strip_accents": None}, (True, None)),
        ({"tokenize_chinese_chars": None}, None),
        ({"tokenize_chinese_chars": True}, None),
        ({"do_lower_case": "yes"}, None),
    ],
)
def test_the_casing_of_tokenizer_config(tmp_path, settings, casing):
    folder = fixtures.changed(tmp_path, "hf_encoder")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert open_source(str(folder)).casing == casing


@pytest.mark.parametrize("keeps", [True, False])
def test_the_accents_of_a_sentencepiece_model(tmp_path, keeps):
    source = open_source(str(fixtures.DATA / "hf_albert"))
    pieces = str(tmp_path / "pieces.model")
    train_sentencepiece(["some words of few letters"] * 9, pieces, vocab_size=17)
    strip = False if keeps else None
    source = dataclasses.replace(source, vocab_file=pieces, do_lower_case=True, strip_accents=strip)
    folder = tmp_path / "written"
    folder.mkdir()
    fixtures.write_hugging_face(folder, source)
    assert json.loads((folder / "tokenizer_config.json").read_text())["keep_accents"] is keeps
    assert open_source(str(folder)).casing == (True, strip)


@pytest.mark.parametrize(
    ("model", "file", "content", "message"),
    [
        ("hf_albert", "tokenizer_config.json", '{"remove_space": false}', ".*remove_space"),
        ("hf_encoder", "special_tokens_map.json", '{"cls_token": 3}', "cls_token: must be a str"),
    ],
)
def test_settings_of_tokenizers_that_are_refused(tmp_path, model, file, content, message):
    folder = fixtures.changed(tmp_path, model)
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=f"{file}: {message}"):
        open_source(str(folder))


@pytest.mark.parametrize("length", ["512", True, 0, 10**30, None])
def test_a_length_that_says_nothing_is_not_read(tmp_path, length):
    folder = fixtures.changed(tmp_path, "hf_encoder")
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": length}))
    assert open_source(str(folder)).max_seq_length is None


@pytest.mark.slow
@fixtures.needs_transformers
@pytest.mark.parametrize("model", fixtures.HUGGING_FACE)
def test_transformers_loads_what_is_written_here(model, tmp_path):
    source = open_source(str(fixtures.DATA / model))
    # As after training: other weights than transformers ever saw.
    weights = {k: np.float32(1.1) * v for k, v in fixtures.weights_of(source).items()}
    fixtures.write_hugging_face(tmp_path, source, weights)
    batch, out = fixtures.DATA / model / "batch.npz", tmp_path / "logits.npz"
    fixtures.transformers("logits", tmp_path, batch, out)
    ours, theirs = outputs(tmp_path), np.load(out)
    atol = 5e-6 * source.config.num_hidden_layers  # each layer rounds anew
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=atol, err_msg=name)
