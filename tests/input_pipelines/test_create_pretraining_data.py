# ruff: noqa: RUF001

import os
import subprocess
import sys
import time
from pathlib import Path

import locked
import pytest

from bert_estimator.storage import remote
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab
from input_pipelines import create_pretraining_data
from input_pipelines.arguments import parse
from input_pipelines.records import manifest as manifests
from input_pipelines.records import record_lengths
from input_pipelines.records.pretraining_features import (
    PretrainingFeatures,
    open_pretraining_records,
)
from input_pipelines.records.record_reader import find_record_files
from input_pipelines.text import document_filter

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def values(*arguments):
    return parse(create_pretraining_data.RecordsConfig, ["program", *arguments])


def arguments(text_file, tmp_path, vocab_file, *others):
    output = ",".join(str(tmp_path / f"out-{i}.tfrecord") for i in range(2))
    return [
        f"--input_file={text_file}",
        f"--output_file={output}",
        f"--vocab_file={vocab_file}",
        "--max_seq_length=16",
        "--max_predictions_per_seq=4",
        *others,
    ]


def test_create(text_file, tmp_path, vocab_file):
    flag_values = values(*arguments(text_file, tmp_path, vocab_file))
    assert flag_values.settings.random_seed == 12345
    summary = create_pretraining_data.create(flag_values)
    records = open_pretraining_records(str(tmp_path / "out-*"), 16, 4, 50)
    lengths = record_lengths.read(records, PretrainingFeatures(16, 4).kinds)
    assert 0.5 < lengths.token_share < 1
    manifest = manifests.read_manifest(manifests.manifest_path(str(tmp_path / "out-0.tfrecord")))
    cut = manifest.corpus["in_no_example"]
    assert summary == (
        f"{records.num_records} examples, {lengths.token_share:.0%} full, from 6 documents (120 "
        f"tokens, 0 % [UNK], {100 * cut / 120:.3g} % in no example) in 2 files."
    )


def test_a_signal_ends_it_and_its_workers_in_silence(tmp_path, vocab_file):
    (tmp_path / "text.txt").write_text(("w1 w2 w3 w4\n" * 9 + "\n") * 50_000)
    flags_ = arguments(tmp_path / "text.txt", tmp_path, vocab_file, "--num_workers=2")
    command = [sys.executable, "-m", "input_pipelines.create_pretraining_data", *flags_]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text().split()) < 3:  # with Python's resource tracker
        time.sleep(0.1)
    process.terminate()
    _, err = process.communicate()
    assert process.returncode == 143
    assert "leaked" not in err and "Traceback" not in err


def test_shards_and_workers(tmp_path, documents, vocab_file, monkeypatch):
    monkeypatch.setattr(create_pretraining_data, "_BYTES_OF_A_WORKER", 100)
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(d) for d in documents * 5))
    written = []
    for others in (["--num_workers=1"], ["--num_workers=2"], []):
        directory = tmp_path / f"{len(written)}"
        directory.mkdir()
        flag_values = values(
            f"--input_file={tmp_path}/text.txt",
            f"--output_file={directory}/a.b.tfrecord",
            f"--vocab_file={vocab_file}",
            "--max_seq_length=16",
            "--max_predictions_per_seq=4",
            "--num_shards=3",
            *others,
        )
        assert " in 3 files." in create_pretraining_data.create(flag_values)
        written.append({path.name: path.read_bytes() for path in directory.iterdir()})
    assert written[0] == written[1] == written[2]
    names = [f"a.b-0000{number}-of-00003.tfrecord" for number in range(3)]
    assert [name for name in sorted(written[0]) if name.startswith("a")] == names
    manifest = manifests.read_manifest(manifests.manifest_path(str(directory / names[0])))
    assert [entry.name for entry in manifest.files] == names


def test_another_number_of_files_is_refused(text_file, tmp_path, vocab_file):
    def create(*others, name="train.tfrecord"):
        given = arguments(text_file, tmp_path, vocab_file)
        given[1] = f"--output_file={tmp_path}/data/{name}"
        return create_pretraining_data.create(values(*given, *others))

    (tmp_path / "data").mkdir()
    create("--num_shards=3")
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    for others in (["--num_shards=2"], []):
        with pytest.raises(
            ValueError,
            match=r"^--output_file: .*/train-00000-of-00003\.tfrecord and 2 more belong to ",
        ):
            create(*others)
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
    create("--num_shards=3")  # as many as before are replaced
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
    create("--num_shards=2", name="other.tfrecord")
    assert len(find_record_files(str(tmp_path / "data"))) == 5
    for path in (tmp_path / "data").glob("train-*"):
        path.unlink()
    (tmp_path / "data" / ".train-00000-of-00003.tfrecord.work").mkdir()
    with pytest.raises(ValueError, match=r"train-00000-of-00003\.tfrecord\.work belong"):
        create("--num_shards=2")
    (tmp_path / "data" / ".train-00000-of-00003.tfrecord.work").rmdir()
    create("--num_shards=2")
    # Records that came together in another way are not read as one set either.
    (tmp_path / "data" / "train.tfrecord").write_bytes(before["train-00000-of-00003.tfrecord"])
    message = r"train-00000-of-00002\.tfrecord and .*train\.tfrecord belong to sets of "
    for pattern in ("", "train*"):
        with pytest.raises(ValueError, match=message):
            find_record_files(str(tmp_path / "data" / pattern))
    assert len(find_record_files(str(tmp_path / "data" / "train-*"))) == 2
    with pytest.raises(ValueError, match=r"train-00000-of-00002\.tfrecord and 1 more belong to"):
        create()


@pytest.mark.parametrize(
    ("others", "dupe_factor"),
    [
        ([], 1),
        (["--masking=dynamic"], 1),
        (["--dupe_factor=3"], 3),
        (["--masking=static"], 10),
        (["--masking=static", "--dupe_factor=3"], 3),
        (["--norandom_next_sentence"], 1),
        (["--objective=mlm_sop"], 1),
        (["--objective=mlm"], 1),
        (["--objective=mlm", "--across_documents", "--masking=static"], 10),
    ],
)
def test_the_creation_is_in_the_manifest(text_file, tmp_path, vocab_file, others, dupe_factor):
    argv = arguments(text_file, tmp_path, vocab_file, *others)
    summary = create_pretraining_data.create(values(*argv))
    manifest = manifests.read_manifest(manifests.manifest_path(str(tmp_path / "out-0.tfrecord")))
    assert manifest.creation["dupe_factor"] == dupe_factor
    assert manifest.is_dynamic == ("--masking=static" not in others)
    swaps = {"--norandom_next_sentence", "--objective=mlm_sop"} & {*others}
    assert manifest.creation["random_next_sentence"] == (not swaps)
    is_whole = "--objective=mlm" in others
    assert manifest.creation.get("objective") == ("mlm" if is_whole else None)
    assert ("examples of whole sentences" in summary) == is_whole
    assert manifest.creation["short_seq_prob"] == (0 if is_whole else 0.1)


def test_both_flags_of_sentence_order_give_the_same_records(text_file, tmp_path, vocab_file):
    made = []
    for flag in ("--norandom_next_sentence", "--objective=mlm_sop"):
        create_pretraining_data.create(values(*arguments(text_file, tmp_path, vocab_file, flag)))
        made.append({p.name: p.read_bytes() for p in tmp_path.iterdir() if "out-" in p.name})
    assert made[0] == made[1]


def test_documents_that_are_left_out(text_file, tmp_path, vocab_file, monkeypatch):
    monkeypatch.setattr(
        document_filter, "language_of", lambda document: "en" if "w1 " in document[0] else "de"
    )
    monkeypatch.setattr(document_filter, "check_language", lambda _: None)
    with open(text_file, "a") as file:
        file.write("\n\nw1 w2\n\nw1 0 1 2 3 4 5 6 7\n")
        file.writelines(f"\n\nw1 w2 w{i} w4\nw5 w6 w7" for i in range(40))
    given = arguments(text_file, tmp_path, vocab_file)
    flags_given = ["--min_words=3", "--min_letters=0.2", "--language=en"]
    summary = create_pretraining_data.create(values(*given, *flags_given))
    whole = manifests.read_manifest(manifests.manifest_path(str(tmp_path / "out-0.tfrecord")))
    expected = {"short": 1, "of too few letters": 1, "in other languages": 5}
    assert whole.corpus["left_out"] == expected and whole.corpus["documents"] == 41
    message = "Left out: 1 short, 1 of too few letters, 5 in other languages."
    assert summary.endswith(message)
    # Each is counted once, although the text is read for held-out documents, too.
    summary = create_pretraining_data.create(values(*given, *flags_given, "--eval_fraction=0.9"))
    assert summary.endswith(message)
    with pytest.raises(
        ValueError, match=r"^all documents are left out: 48 short\. Change the flags"
    ):
        create_pretraining_data.create(values(*given, "--min_words=1000"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            "--output_file={folder}/a,{folder}/heldout.news.tfrecord",
            r"--output_file=.*heldout\.news\.tfrecord: names that begin with 'heldout\.' are for",
        ),
        ("--num_shards=2", "--num_shards=2: --output_file names 2 files. Give one name"),
    ],
)
def test_unfit_flags(text_file, tmp_path, vocab_file, changed, message):
    changed = changed.format(folder=tmp_path)
    with pytest.raises(ValueError, match=message):
        create_pretraining_data.create(values(*arguments(text_file, tmp_path, vocab_file, changed)))


def test_two_processes_do_not_write_the_same_files(text_file, tmp_path, vocab_file, capsys):
    argv = ["name", *arguments(text_file, tmp_path, vocab_file)]
    with locked.by_another(tmp_path / ".out-0.tfrecord.lock"):
        before = sorted(os.listdir(tmp_path))
        assert create_pretraining_data.main(argv) == 2
        message = f"create_pretraining_data: {tmp_path}/out-0.tfrecord {locked.WHO}"
        assert message in capsys.readouterr().err
        assert sorted(os.listdir(tmp_path)) == before


def test_unfit_remote_output(text_file, tmp_path, vocab_file):
    url = f"ram:/{tmp_path}/data"

    def refusal(*others):
        with pytest.raises(ValueError) as raised:
            create_pretraining_data.create(
                values(*arguments(text_file, tmp_path, vocab_file, *others))
            )
        return remote.shown(raised.value)

    assert refusal(f"--output_file={url}/a,ram://b/a") == (
        f"--output_file: {url}/a,ram://b/a lie in different directories; give one"
    )
    output = f"--output_file={url}/a.tfrecord"
    assert "must be a directory that all" in refusal(output, "--runner=DirectRunner")
    remote.write(b"", f"{url}/a-00000-of-00002.tfrecord")
    assert f"{url}/a-00000-of-00002.tfrecord belong to records of this name" in refusal(output)


def _numbered(first, mark="."):
    return f"W{first} " + " ".join(f"w{first + n}" for n in range(1, 6)) + mark


ENGLISH = [[_numbered(7 * d + 3 * s) for s in range(4)] for d in range(5)]
CHINESE = ["今天天气好", "我们去公园", "你想一起来吗", "他说他很忙", "好我们走吧"]
KINDS = {  # name -> the sentences of documents, what joins them in a line
    "English": (ENGLISH, " "),
    "English, several marks": ([[_numbered(9, "?!"), _numbered(3, "..."), *ENGLISH[0]]] * 3, "  "),
    "Chinese": ([[f"{s}。" for s in CHINESE]] * 4, ""),
    "Chinese, ASCII marks": ([[f"{s}." for s in CHINESE]] * 4, ""),
    "Japanese": ([["今日はいい天気です。", "カレーを食べよう！", "「はい」と言う。"] * 2] * 3, ""),
    "Hindi": ([["यह घर है।", "वह बाग है।"] * 3] * 3, " "),
}


@pytest.mark.parametrize(
    ("kind", "masking", "workers"),
    [
        *((kind, "dynamic", 1) for kind in KINDS),
        ("English", "static", 1),
        ("English", "static", 2),
        ("Chinese", "dynamic", 2),
    ],
)
def test_a_paragraph_in_a_line_gives_the_records_of_its_sentences(
    tmp_path, monkeypatch, kind, masking, workers
):
    """Only lines that are too long for a sentence are split."""
    monkeypatch.setattr(create_pretraining_data, "_BYTES_OF_A_WORKER", 10)
    texts, between = KINDS[kind]
    words = [f"w{number}" for number in range(60)]
    characters = sorted({char for text in texts for line in text for char in line.lower()} - {" "})
    inner = [f"##{char}" for char in characters]
    write_vocab([*SPECIAL_TOKENS, *words, *characters, *inner], str(tmp_path / "vocab.txt"))
    made, cut = {}, {}
    for name, join, flags_ in (
        ("sentences", "\n", []),
        ("unsplit", "\n", ["--split_sentences=no"]),
        ("lines", between, []),
        ("lost", between, ["--split_sentences=no"]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.txt").write_text("\n\n".join(join.join(t) for t in texts), encoding="utf-8")
        output, vocab_file = folder / "a.tfrecord", tmp_path / "vocab.txt"
        flags_ += [f"--max_seq_length=24 --masking={masking}", f"--num_workers={workers}"]
        argv = [f"--input_file={folder}/a.txt", f"--output_file={output}"]
        argv += [f"--vocab_file={vocab_file}", "--nostrip_accents", *" ".join(flags_).split()]
        create_pretraining_data.create(values(*argv))
        made[name] = output.read_bytes()
        corpus = manifests.read_manifest(manifests.manifest_path(str(output))).corpus
        cut[name] = corpus["in_no_example"] / corpus["tokens"]
    assert made["sentences"] == made["unsplit"] == made["lines"] != made["lost"]
    assert cut["sentences"] == cut["lines"] < cut["lost"]


@pytest.mark.parametrize("masking", ["static", "dynamic"])
@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("w1 w2 w3 w4", "100"),
        ("今天 天气", "100"),  # each character is a word, [UNK] in this vocabulary
        ("w1a w2b", "0"),
        ("w1 w1 w1 w2ab", "50"),
        ("w1, w2a b", "60"),
    ],
)
@pytest.mark.parametrize(
    ("asked", "unit"),
    [
        ("--do_whole_word_mask", "word"),
        ("--masking_unit=word", "word"),
        ("--masking_unit=span", "span"),
        ("--masking_unit=token", None),
        ("--nodo_whole_word_mask", None),
    ],
)
def test_says_how_many_words_are_whole(tmp_path, vocab_file, masking, text, share, asked, unit):
    (tmp_path / "a.txt").write_text("\n".join([text] * 8), encoding="utf-8")
    flags_ = [f"--masking={masking}", asked]
    argv = arguments(tmp_path / "a.txt", tmp_path, vocab_file, *flags_)
    summary = create_pretraining_data.create(values(*argv))
    line = (
        f"\n--masking_unit={unit}: {share} % of the tokens are words by themselves. So are Chinese "
        "characters, unless --word_segmenter joins them."
    )
    assert (line in summary) == (unit is not None) == ("--masking_unit" in summary)


@pytest.mark.parametrize(
    ("flags_", "message"),
    [
        (
            ["--masking_unit=letter"],
            "--masking_unit is letter; it must be one of token, word, span",
        ),
        (
            ["--masking_unit=span", "--do_whole_word_mask"],
            "--masking_unit is span, but do_whole_word_mask, an older name of masking_unit=word, "
            "is true. Give masking_unit alone.",
        ),
        (["--masking_unit=token", "--do_whole_word_mask"], "--masking_unit is token, but do_whole"),
        (["--masking_unit=word", "--nodo_whole_word_mask"], "word, is false. Give masking_unit al"),
        (
            ["--word_segmenter=jieba"],
            "--word_segmenter is jieba; it must be given with masking_unit=word or =span",
        ),
        (
            ["--masking_unit=token", "--word_segmenter=a:b"],
            "--word_segmenter is a:b; it must be gi",
        ),
        (
            ["--masking_unit=word", "--word_segmenter=a"],
            "--word_segmenter: 'a' must be jieba, or a function as module:function",
        ),
        (
            ["--do_whole_word_mask", "--word_segmenter=no_such_module:a"],
            "--word_segmenter: no_such_module:a cannot be imported: ModuleNotFoundError: No module "
            "named 'no_such_module'",
        ),
    ],
)
def test_units_that_cannot_be(text_file, tmp_path, vocab_file, capsys, flags_, message):
    argv = arguments(text_file, tmp_path, vocab_file, *flags_)
    assert create_pretraining_data.main(["program", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.tfrecord*"))


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_both_names_of_whole_words_make_the_same_bytes(text_file, tmp_path, vocab_file, masking):
    made = []
    for number, flags_ in enumerate(
        (["--do_whole_word_mask"], ["--masking_unit=word"], ["--do_whole_word_mask=true",
         "--masking_unit=word"], ["--masking_unit=token"], ["--nodo_whole_word_mask"], [])
    ):  # fmt: skip
        directory = tmp_path / str(number)
        directory.mkdir()
        argv = arguments(text_file, directory, vocab_file, f"--masking={masking}", *flags_)
        create_pretraining_data.create(values(*argv))
        made.append({path.name: path.read_bytes() for path in directory.glob("*[!k]")})
    assert made[0] == made[1] == made[2] != made[3] == made[4] == made[5]
    creation = manifests.read_manifest(
        str(tmp_path / "1" / "manifest.out-0.tfrecord.json")
    ).creation
    assert creation["do_whole_word_mask"] is True and "masking_unit" not in creation


@pytest.mark.parametrize(
    ("flags_", "least", "most"),
    [
        (["--split_sentences=no"], 0.97, 0.99),  # 13 of 700 tokens of a document are in an example
        ([], 0, 0.2),
        (["--split_sentences=yes"], 0, 0.2),
        (["--split_sentences=no", "--masking=static", "--dupe_factor=2"], 0.94, 0.99),
        (["--masking=static"], 0, 0.01),
        (["--eval_fraction=0.5"], 0, 0.2),
    ],
)
def test_how_much_is_cut(tmp_path, vocab_file, flags_, least, most):
    """A text without the marks of sentences is cut between words."""
    texts = [" ".join(f"w{(n * step) % 40}" for n in range(700)) for step in (1, 3, 7, 9)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    argv = arguments(tmp_path / "a.txt", tmp_path, vocab_file, *flags_)
    summary = create_pretraining_data.create(values(*argv))
    paths = list(tmp_path.glob("manifest*"))
    for manifest in map(manifests.read_manifest, map(str, paths)):
        share = manifest.corpus["in_no_example"] / manifest.corpus["tokens"]
        assert least <= share <= most
        assert f" % [UNK], {100 * share:.3g} % in no example)" in summary
    assert len(paths) == summary.count("in no example") == 1 + ("--eval_fraction=0.5" in flags_)
