"""Records of text whose words spaces do not cut: masks are of the words of a segmenter."""

import itertools
import json
import random

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import word_cutters
from batches import batches

from bert_estimator.tokenization import SPECIAL_TOKENS, train_sentencepiece, write_vocab
from input_pipelines import create_pretraining_data
from input_pipelines.records import manifest as manifests
from input_pipelines.records import unmasked_records
from input_pipelines.records.pretraining_features import (
    PretrainingFeatures,
    open_pretraining_records,
)
from input_pipelines.records.pretraining_input import input_fn_builder
from input_pipelines.records.record_reader import RecordError

LENGTH, MOST = 48, 7
INSIDE = {char for word in word_cutters.LEXICON for char in word[1:]}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns a directory with Chinese text, and vocabularies for it."""
    path = tmp_path_factory.mktemp("data")
    documents = word_cutters.documents(60)
    (path / "text.txt").write_text("\n\n".join(map("\n".join, documents)), encoding="utf-8")
    sentences = list(itertools.chain(*documents))
    characters = sorted({*"".join(word_cutters.LEXICON), *"。!"})
    uncased = [*SPECIAL_TOKENS, *characters, "un", "##aff", "##able", "caf", "##e"]
    write_vocab(uncased, str(path / "uncased.txt"))
    cased = [*SPECIAL_TOKENS, *characters, "Un", "##aff", "##able", "caf", "##é"]
    write_vocab(cased, str(path / "cased.txt"))
    train_sentencepiece(sentences, str(path / "sentencepiece.model"), 90)
    return path


def create(data, output, vocabulary, *flags, segmenter="known"):
    """Makes records; returns the exit code."""
    output.mkdir(exist_ok=True)
    (vocab_file,) = data.glob(f"{vocabulary}.*")
    casing = ["--nodo_lower_case"] if vocabulary == "cased" else []
    others = [f"--word_segmenter=word_cutters:{segmenter}"] if segmenter else []
    argv = [
        f"--input_file={data / 'text.txt'}", f"--output_file={output / 'x.tfrecord'}",
        f"--vocab_file={vocab_file}", f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={MOST}", "--dupe_factor=2", *casing, *others, *flags,
    ]  # fmt: skip
    return create_pretraining_data.main(["create_pretraining_data", *argv])


def records_of(output):
    records = open_pretraining_records(str(output), LENGTH, MOST)
    return records, np.arange(records.num_records)


def examples_of(output, spec):
    records, numbers = records_of(output)
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(tf.io.parse_example(records.read_all(numbers), spec))


def features_of(output, epoch=0, **changes):
    """Returns the features of all records, with the masks of an epoch if they have none."""
    records, numbers = records_of(output)
    masker = unmasked_records.open_masker(records.files, seed=5)
    values = examples_of(
        output, masker.spec if masker else PretrainingFeatures(LENGTH, MOST).spec()
    )
    for name, (row, value) in changes.items():
        values[name][row] = value
    if masker is None:
        return values
    return masker.features(records, numbers, np.full(len(numbers), epoch), values)


def tokenizer_of(output):
    (manifest_file,) = output.glob("manifest.*")
    manifest = manifests.read_manifest(str(manifest_file))
    vocab_file = str(output / manifest.vocab_file)
    return manifest, unmasked_records.reopen_tokenizer(vocab_file, manifest.casing)


def words_of(pieces):
    """Returns which of the pieces of a segment continue a word, by what their characters say."""
    continues, before = [], None
    for piece in pieces:
        chars = piece.removeprefix("\u2581").removeprefix("##")
        # Latin pieces follow Latin ones only within a word; an unknown piece is a word.
        is_latin = bool(before) and before[-1].isascii() and before[-1].isalpha()
        is_latin &= piece[0] != "\u2581" and chars[:1].isalpha() and chars[:1] not in INSIDE
        is_latin &= not {*chars} & {*"".join(word_cutters.LEXICON)}
        continues.append(before is not None and (chars[:1] in INSIDE or is_latin or before == ""))
        before = chars
    return continues


def check_masks(output, epoch=0):
    """Checks that all masks are of whole words, and not too many; returns the masked places."""
    _, tokenizer = tokenizer_of(output)
    features, masked = features_of(output, epoch), []
    lengths = features["input_mask"].sum(axis=1)
    numbers = (features["masked_lm_weights"] > 0).sum(axis=1)
    budgets = np.minimum(MOST, np.maximum(1, np.rint(0.15 * lengths)))
    assert (numbers <= budgets).all() and numbers.sum() > 0.9 * budgets.sum()
    for row, length in enumerate(lengths):
        places = features["masked_lm_positions"][row, : numbers[row]]
        ids = features["input_ids"][row].copy()
        ids[places] = features["masked_lm_ids"][row, : numbers[row]]
        tokens = tokenizer.convert_ids_to_tokens(ids[:length])
        first_of_b = tokens.index("[SEP]") + 1
        for first, last in ((1, first_of_b - 1), (first_of_b, length - 1)):
            continues = words_of(tokens[first:last])
            for place, is_inside in enumerate(continues, first):
                if is_inside:
                    assert (place in places) == (place - 1 in places), (tokens, places)
        masked.append(frozenset(places.tolist()))
    return masked


@pytest.mark.parametrize("vocabulary", ["uncased", "cased", "sentencepiece"])
@pytest.mark.parametrize("unit", ["word", "span"])
@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_masks_cover_whole_words(data, tmp_path, masking, unit, vocabulary, capsys):
    output = tmp_path / "a"
    flags = f"--masking={masking}", f"--masking_unit={unit}"
    assert create(data, output, vocabulary, *flags) == 0
    said = capsys.readouterr().out
    assert f"--masking_unit={unit} --word_segmenter=word_cutters:known: " in said
    masked = check_masks(output)
    manifest, _ = tokenizer_of(output)
    assert manifest.creation["masking_unit"] == unit
    assert manifest.creation["word_segmenter"] == "word_cutters:known"
    assert "do_whole_word_mask" not in manifest.creation  # so earlier versions refuse the records
    if masking == "dynamic":
        assert masked == check_masks(output) != check_masks(output, epoch=1)


def test_without_the_segmenter_masks_cut_words(data, tmp_path):
    """So the check above can fail."""
    assert create(data, tmp_path / "a", "uncased", "--masking_unit=word", segmenter=None) == 0
    with pytest.raises(AssertionError, match=r"\[CLS\]"):
        check_masks(tmp_path / "a")


def test_pieces_stay_as_they_are(data, tmp_path):
    """All but the boundaries is as without a segmenter."""
    files = {}
    for name, segmenter in (("with", "known"), ("without", None)):
        assert (
            create(data, tmp_path / name, "uncased", "--masking_unit=word", segmenter=segmenter)
            == 0
        )
        examples = examples_of(tmp_path / name, unmasked_records.SPEC)
        files[name] = {key: values.tolist() for key, values in examples.items()}
        counts = np.load(tmp_path / name / "token_counts.x.tfrecord.npy")
        files[name]["counts"] = counts.tolist()
    assert files["with"] == files["without"]


def test_upstreams_readers_read_static_records(data, tmp_path):
    output = tmp_path / "a"
    create(data, output, "uncased", "--masking=static", "--masking_unit=span")
    features = features_of(output)  # by google-research/bert's names
    of_words = tf.io.FixedLenFeature([LENGTH], tf.int64)
    stored = examples_of(output, {"continues_word": of_words})["continues_word"]
    assert set(np.unique(stored)) == {0, 1} and not stored[features["input_mask"] == 0].any()
    # The record says of each character that is not masked whether it is inside of a word.
    manifest, tokenizer = tokenizer_of(output)
    inside = [i for i in range(5, manifest.vocab_size) if tokenizer.inv_vocab[i] in INSIDE]
    is_known = np.ones_like(stored, bool)
    for row, places in enumerate(features["masked_lm_positions"]):
        is_known[row, places] = False
    is_inside = np.isin(features["input_ids"], inside)
    first = np.roll(is_inside, 1, axis=1)
    starts_segment = np.isin(np.roll(features["input_ids"], 1, axis=1), [2, 3])
    chosen = is_known & is_inside & ~starts_segment
    assert stored[chosen].all() and chosen.sum() > 100 and first.any()


# Syllables of Thai, which has spaces between phrases alone.
SYLLABLES = ["ไทย", "กิน", "ข้าว", "บ้าน", "น้ำ", "ฝน", "รัก", "เรียน", "ภาษา", "แมว"]


@pytest.fixture(scope="module")
def thai(tmp_path_factory):
    """Returns a directory with Thai text in phrases of 1, 12 and 40 syllables, and vocabularies."""
    path = tmp_path_factory.mktemp("thai")
    rng, sentences = random.Random(0), {}
    for size in (1, 12, 40, 1600):
        phrases = ["".join(rng.choices(SYLLABLES, k=size)) for _ in range(1600 // size)]
        lines = [" ".join(phrases[i : i + 2]) for i in range(0, len(phrases), 2)]
        (path / f"{size}.txt").write_text("\n".join(lines), encoding="utf-8")
        sentences[size] = lines
    train_sentencepiece(sentences[12], str(path / "sentencepiece.model"), 70, strip_accents=False)
    pieces = itertools.chain.from_iterable((s, f"##{s}") for s in SYLLABLES)
    write_vocab([*SPECIAL_TOKENS, *pieces], str(path / "wordpiece.txt"))
    return path


@pytest.mark.parametrize("unit", ["word", "span", "token"])
@pytest.mark.parametrize("masking", ["static", "dynamic"])
@pytest.mark.parametrize(
    ("size", "vocabulary"),
    # WordPiece makes [UNK] of 1600 syllables.
    [*itertools.product([1, 12, 40], ["sentencepiece", "wordpiece"]), (1600, "sentencepiece")],
)
def test_phrases_are_not_taken_for_words(thai, tmp_path, size, masking, unit, vocabulary, capsys):
    """That spaces stand between phrases is said; phrases that could not be masked are refused."""
    (vocab_file,) = thai.glob(f"{vocabulary}.*")
    output = tmp_path / "x.tfrecord"
    argv = [
        f"--input_file={thai / f'{size}.txt'}", f"--output_file={output}", "--objective=mlm",
        f"--vocab_file={vocab_file}", "--nostrip_accents", "--max_seq_length=128",
        f"--masking={masking}", f"--masking_unit={unit}",
    ]  # fmt: skip
    code = create_pretraining_data.main(["create_pretraining_data", *argv])
    out, error = capsys.readouterr()
    if unit == "token" or size < 40:
        assert (code, output.exists()) == (0, True)
        said = f"--masking_unit={unit}: " in out and "words of 9 and more tokens" in out
        assert said == (unit != "token" and size == 12)
        return
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert f"--masking_unit={unit}: " in error and "of the tokens would never be masked" in error
    assert "give --word_segmenter, or --masking_unit=token" in error


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_workers_import_the_function(data, tmp_path, monkeypatch, masking):
    monkeypatch.setattr(create_pretraining_data, "_BYTES_OF_A_WORKER", 100)
    flags = f"--masking={masking}", "--masking_unit=span"
    made = []
    for number in (1, 2):
        output = tmp_path / str(number)
        assert create(data, output, "uncased", *flags, f"--num_workers={number}") == 0
        made.append({path.name: path.read_bytes() for path in output.glob("*[!k]")})
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("segmenter", "message"),
    [
        ("as_text", "TypeError: returned a text, not a list of words"),
        ("failing", "KeyError: 'a word that is not known'"),
        ("with_a_loss", "it must be a list of the text's words"),
    ],
)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_function_that_does_not_cut(
    data, tmp_path, monkeypatch, capsys, segmenter, message, num_workers
):
    monkeypatch.setattr(create_pretraining_data, "_BYTES_OF_A_WORKER", 100)
    flags = "--masking_unit=word", f"--num_workers={num_workers}"
    assert create(data, tmp_path / "a", "uncased", *flags, segmenter=segmenter) == 2
    err = capsys.readouterr().err
    place = (
        f"{data / 'text.txt'}, from byte 0: document 1: --word_segmenter=word_cutters:{segmenter}"
    )
    assert place in err and message in err and "Traceback" not in err
    assert not list((tmp_path / "a").glob("x.tfrecord"))


def test_what_is_not_a_function_is_refused_before_the_text_is_read(data, tmp_path, capsys):
    segmenter = "NOT_A_FUNCTION"
    assert create(data, tmp_path / "a", "uncased", "--masking_unit=word", segmenter=segmenter) == 2
    said = f"--word_segmenter: word_cutters:{segmenter} is not a function, but 3; name a function"
    assert f"create_pretraining_data: {said}" in capsys.readouterr().err


def test_long_lines_are_cut_between_words(data, tmp_path):
    """A paragraph without marks of sentences is cut, but not inside of a word."""
    (tmp_path / "long").mkdir()
    for path in data.glob("uncased.txt"):
        (tmp_path / "long" / path.name).write_bytes(path.read_bytes())
    words = word_cutters.LEXICON * 60
    (tmp_path / "long" / "text.txt").write_text("".join(words) + "\n使用。\n", encoding="utf-8")
    output = tmp_path / "a"
    flags = "--masking_unit=word", "--norandom_next_sentence", "--short_seq_prob=0"
    assert create(tmp_path / "long", output, "uncased", *flags) == 0
    check_masks(output)


def test_sets_of_different_segmenters(data, tmp_path):
    for name, segmenter in (("a", "known"), ("b", "lazily"), ("c", None)):
        create(data, tmp_path / name, "uncased", "--masking_unit=word", segmenter=segmenter)
    for name in "bc":
        files = [str(tmp_path / each / "x.tfrecord") for each in ("a", name)]
        with pytest.raises(ValueError, match=r"do not agree in .* --masking_unit or --word_segm"):
            unmasked_records.open_masker(files, 1)


def test_bits_that_do_not_fit(data, tmp_path):
    create(data, tmp_path / "a", "uncased", "--masking_unit=word")
    with pytest.raises(RecordError, match=r"record 2 .*; continues_word must have a bit for each"):
        features_of(tmp_path / "a", continues_word=(2, b"\0"))


def test_a_manifest_of_a_segmenter_whose_records_lack_the_words(data, tmp_path):
    create(data, tmp_path / "a", "uncased", "--masking_unit=word", segmenter=None)
    manifest_file = tmp_path / "a" / "manifest.x.tfrecord.json"
    fields = json.loads(manifest_file.read_text())
    fields["creation"] |= {"masking_unit": "word", "word_segmenter": "jieba"}
    manifest_file.write_text(json.dumps(fields))
    function = input_fn_builder(str(tmp_path / "a"), LENGTH, MOST, True)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="no feature 'continues_word'; it has "
    ):
        batches(function, {"batch_size": 4}, most=1)
