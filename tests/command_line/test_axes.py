"""Ranges and ticks of axes."""

import math
import random

import pytest

from bert_estimator.command_line import axes


def texts(axis):
    return " ".join(text for _, text in axis.ticks)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (0, "0 1"),
        (1, "0 1"),
        (3, "0 1 2 3"),
        (8, "0 1 2 3 4 5 6 7 8"),
        (9, "0 2 4 6 8"),
        (200, "0 50 100 150 200"),
        (1000, "0 200 400 600 800 1,000"),
        (8599, "0 2,000 4,000 6,000 8,000"),
        (100_000, "0 20,000 40,000 60,000 80,000 100,000"),
        (1_000_000, "0 200,000 400,000 600,000 800,000 1,000,000"),
        (30_000_000, "0 5e6 1e7 1.5e7 2e7 2.5e7 3e7"),
    ],
)
def test_ticks_of_steps_are_round_whole_numbers(last, expected):
    axis = axes.of_steps(last)
    assert texts(axis) == expected
    assert (axis.low, axis.high) == (0, max(last, 1))


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([5.322, 7.672], {}, "5.0 5.5 6.0 6.5 7.0 7.5 8.0"),
        ([0.0, 1.0], {}, "0 0.2 0.4 0.6 0.8 1.0"),
        ([0.3, 0.7], {}, "0.3 0.4 0.5 0.6 0.7"),
        ([-1.0, 1.0], {}, "-1.0 -0.5 0 0.5 1.0"),
        ([0.002, 0.01], dict(from_zero=True, most=4), "0 0.005 0.010"),
        ([1e-5, 2e-5], dict(from_zero=True, most=4), "0 5e-6 1e-5 1.5e-5 2e-5"),
        ([0.0], {}, "-0.6 -0.4 -0.2 0 0.2 0.4 0.6"),
        ([2.0], {}, "1.90 1.95 2.00 2.05 2.10"),
        ([-3.0, -3.0], {}, "-3.15 -3.10 -3.05 -3.00 -2.95 -2.90 -2.85"),
        ([1200.0, 5600.0], {}, "1,000 2,000 3,000 4,000 5,000 6,000"),
        ([0.0, 3e38], {}, "0 5e37 1e38 1.5e38 2e38 2.5e38 3e38"),
        # Logarithmic, since 200 / 2 is more than 50.
        ([2.0, 200.0], dict(may_be_log=True), "2 5 10 20 50 100 200"),
        ([3.0, 4e5], dict(may_be_log=True), "1 10 100 1,000 10,000 100,000 1e6"),
        ([0.03, 70.0], dict(may_be_log=True), "0.01 0.1 1 10 100"),
        ([1e-20, 1e20], dict(may_be_log=True), "1e-21 1e-14 1e-7 1 1e7 1e14 1e21"),
        # Zero is not on a logarithmic axis.
        ([0.0, 200.0], dict(may_be_log=True), "0 50 100 150 200"),
        ([2.0, 100.0], dict(may_be_log=True), "0 20 40 60 80 100"),
    ],
)
def test_ticks_of_values(values, options, expected):
    assert texts(axes.of_values(values, **options)) == expected


def test_axes_hold_their_values_and_the_texts_of_ticks_are_their_values():
    generator = random.Random(1)
    for _ in range(500):
        scale = 10 ** generator.uniform(-30, 30)
        size = 10 ** generator.uniform(-8, 0)  # of the differences, in comparison with the values
        values = [scale * (1 + size * generator.gauss(0, 1)) for _ in range(3)]
        for may_be_log in (False, True):
            most = generator.randint(3, 8)
            axis = axes.of_values(values, most, may_be_log=may_be_log)
            assert all(0 <= axis.share(value) <= 1 for value in values), values
            shares = [axis.share(value) for value, _ in axis.ticks]
            assert shares == sorted(set(shares)) and shares[0] >= 0 and shares[-1] <= 1
            assert 2 <= len(shares) <= most + 1
            for value, text in axis.ticks:
                assert math.isclose(float(text.replace(",", "")), value, rel_tol=1e-12), values


def test_a_logarithmic_axis_has_equal_distances_for_equal_ratios():
    axis = axes.of_values([1.0, 100.0], may_be_log=True)
    assert axis.is_log
    assert [axis.share(value) for value in (1.0, 10.0, 100.0)] == pytest.approx([0, 0.5, 1])


def test_names_stand_at_equal_distances():
    axis = axes.of_names(["a", "b"])
    assert axis.ticks == ((0, "a"), (1, "b"))
    assert [axis.share(value) for value in (0, 1)] == [0.25, 0.75]
