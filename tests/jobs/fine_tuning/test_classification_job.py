"""What a run of run_classifier.py reads of long texts, if it uses a network without training it."""

import fixtures
import pytest

from bert_estimator.command_line.flags import FlagError
from bert_estimator.interchange.source import Source
from bert_estimator.jobs.fine_tuning import classification_job, fine_tuning_job
from bert_estimator.jobs.fine_tuning.classification_config import resolve

FILES = [f"--init_checkpoint={fixtures.DATA / 'hf_encoder'}", "--do_predict"]
WINDOWS, STRIDE = "--long_texts=windows", "--doc_stride={}".format


def completed(tmp_path, monkeypatch, network, *flags):
    """Returns the configuration of a prediction, with what its network records."""
    source = Source("network", "hf", {}, None, **network)
    for module in (classification_job, fine_tuning_job):
        monkeypatch.setattr(module, "network_in_use", lambda _: ("init_checkpoint", source))
    (tmp_path / "texts.tsv").write_text("sentence\na\n")
    own = [f"--predict_file={tmp_path}/texts.tsv", f"--output_dir={tmp_path}/run"]
    (config,) = resolve(["run_classifier.py", *FILES, *own, *flags])
    return classification_job.Classification.completed(config).data


@pytest.mark.parametrize(
    ("length", "flags", "most"),
    [
        (512, [STRIDE(510)], None),
        (512, [STRIDE(511)], 510),
        (None, [STRIDE(126)], None),
        (None, [STRIDE(127)], 126),
        (64, [STRIDE(62)], None),
        (64, [STRIDE(100)], 62),
        (512, [STRIDE(256), "--max_seq_length=128"], 126),
        (64, [STRIDE(100), "--max_seq_length=128"], None),
    ],
)
def test_windows_overlap_by_the_length_of_the_network(tmp_path, monkeypatch, length, flags, most):
    network = {"max_seq_length": length}
    if most is None:
        data = completed(tmp_path, monkeypatch, network, WINDOWS, *flags)
        assert data.doc_stride <= data.max_seq_length - 2
        return
    with pytest.raises(FlagError, match=f"^{flags[0]}: must be at most {most}, the tokens of a wi"):
        completed(tmp_path, monkeypatch, network, WINDOWS, *flags)


@pytest.mark.parametrize(
    ("recorded", "flags", "expected"),
    [
        (("windows", 20), [], ("windows", 20)),
        (("windows", 20), [WINDOWS], ("windows", 20)),
        (("windows", 20), [WINDOWS, STRIDE(30)], ("windows", 30)),
        (("windows", 20), ["--long_texts=cut"], ("cut", None)),
        (("windows", None), [WINDOWS], ("windows", None)),
        (("head_tail", None), [WINDOWS], ("windows", None)),
        (("head_tail", None), [], ("head_tail", None)),
        ((None, None), [WINDOWS, STRIDE(30)], ("windows", 30)),
        ((None, None), [], ("cut", None)),
    ],
)
def test_a_network_says_the_stride_of_its_choice(tmp_path, monkeypatch, recorded, flags, expected):
    network = dict(zip(("long_texts", "doc_stride"), recorded, strict=True))
    data = completed(tmp_path, monkeypatch, {"max_seq_length": 64, **network}, *flags)
    assert (data.long_texts, data.doc_stride) == expected


def test_the_stride_of_a_network_does_not_suit_every_length(tmp_path, monkeypatch):
    network = {"max_seq_length": 64, "long_texts": "windows", "doc_stride": 50}
    with pytest.raises(FlagError, match=r"^--doc_stride=50: must be at most 30, the tokens of a"):
        completed(tmp_path, monkeypatch, network, "--max_seq_length=32")
