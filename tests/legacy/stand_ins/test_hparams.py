"""Tests the types, the parsing and the errors of tf.contrib.training.HParams."""

import copy

import pytest

from bert_estimator.legacy.stand_ins.hparams import HParams


def make():
    return HParams(units=4, rate=0.5, deep=True, sizes=[1, 2], name="x")


def test_values_are_attributes():
    hparams = make()
    hparams.add_hparam("more", 3)
    assert (hparams.units, hparams.sizes, hparams.more) == (4, [1, 2], 3)
    assert hparams.values()["name"] == "x"
    assert "units" in hparams and "absent" not in hparams
    assert hparams.get("rate") == 0.5 and hparams.get("absent", 7) == 7
    assert str(hparams) == "units=4,rate=0.5,deep=True,sizes=[1, 2],name=x,more=3"
    assert repr(HParams(b=1, a="x")) == "HParams([('a', 'x'), ('b', 1)])"
    hparams.del_hparam("more")
    assert "more" not in hparams
    assert copy.deepcopy(hparams).values() == hparams.values()


def test_arguments_that_are_not_hyperparameters():
    hparams = HParams(hparam_def=None, model_structure="tree", a=1)
    assert hparams.values() == {"a": 1} and hparams.get_model_structure() == "tree"
    hparams.set_model_structure(None)
    assert hparams.get_model_structure() is None
    with pytest.raises(ValueError, match="hparam_def is not supported; give the names and values"):
        HParams(hparam_def=object())


def test_parse_splits_lists_at_commas_and_spaces_as_tf1_does():
    hparams = HParams(names=["x"], sizes=[1])
    assert hparams.parse("names=[a b, c],sizes=[ 3 4 ]").values() == {
        "names": ["a", "b", "c"],
        "sizes": [3, 4],
    }


def test_parse_reads_every_type():
    hparams = make().parse("deep=false, name=hello world,units = 8,sizes=[3, 4,5],rate=1e-3")
    assert hparams.values() == {
        "units": 8,
        "rate": 1e-3,
        "deep": False,
        "sizes": [3, 4, 5],
        "name": "hello world",
    }
    assert make().parse("").values() == make().values()


def test_an_integer_becomes_a_float_where_one_is_wanted():
    hparams = make().parse("rate=2")
    assert hparams.rate == 2.0 and isinstance(hparams.rate, float)
    hparams.set_hparam("rate", 3)
    assert isinstance(hparams.rate, float)


def test_json_and_dicts():
    hparams = make().override_from_dict({"units": 9})
    assert HParams(units=1).parse_json('{"units": 5}').units == 5
    assert '"units": 9' in hparams.to_json(sort_keys=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("units=2.0", "units must be of type int"),
        ("units=two", "units must be of type int"),
        ("deep=yes", "true or false"),
        ("sizes=3", r"write sizes=\[3\]"),
        ("units=[3]", "must be a single value"),
        ("absent=2", "absent is unknown"),
        ("rate=1,rate=2", "given twice"),
        ("units", "cannot read 'units'"),
        ("units=5,,", "cannot read"),
    ],
)
def test_parse_refuses(text, says):
    with pytest.raises(ValueError, match=says):
        make().parse(text)


@pytest.mark.parametrize("value", [2.0, True, None, "4", [4]])
def test_set_hparam_refuses_another_type(value):
    with pytest.raises(ValueError, match="units"):
        make().set_hparam("units", value)


def test_unknown_taken_and_empty():
    with pytest.raises(KeyError):
        make().set_hparam("absent", 1)
    with pytest.raises(KeyError):
        make().override_from_dict({"absent": 1})
    with pytest.raises(ValueError, match="is taken"):
        make().add_hparam("units", 1)
    with pytest.raises(ValueError, match="is taken"):
        HParams(values=3)
    with pytest.raises(ValueError, match="empty list"):
        HParams(sizes=[])
