"""Tests the reports and the table of the recipe's plan, without calling the compiler."""

import json

import pytest

from benchmarks import tpu_plan


def report(total, fits=True, **changes):
    times = {"least_total_secs": 1200, "total_secs_at_share_of_the_paper": 2400} if fits else {}
    return {
        "cores": 256,
        "batch_per_core": 128,
        "fits": fits,
        "memory": {"total": total * 2**30},
        "usable_hbm": 15.75 * 2**30,
        **times,
        **changes,
    }


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(tpu_plan, "RESULTS", str(tmp_path))
    return tmp_path


def test_a_topology_is_known_when_both_stages_are(results):
    assert tpu_plan.reports_of("v5e:16x16") is None
    (results / "v5e_16x16_stage_1.json").write_text(json.dumps(report(7)))
    assert tpu_plan.reports_of("v5e:16x16") is None
    (results / "v5e_16x16_stage_2.json").write_text(json.dumps(report(9)))
    assert tpu_plan.reports_of("v5e:16x16") == [report(7), report(9)]
    # Full and other records have the first stage in common.
    assert tpu_plan.reports_of("v5e:16x16", 0.5) is None
    (results / "v5e_16x16_stage_2_fill_0.5.json").write_text(json.dumps(report(5)))
    assert tpu_plan.reports_of("v5e:16x16", 0.5) == [report(7), report(5)]
    assert {plan for plan in tpu_plan.plans() if plan[1]} == {("v3:32x32", 0.46), ("v3:32x32", 0.5)}


def test_the_table_sums_the_stages():
    plans = {
        ("v5e:16x16", None): [report(7.25, batch_per_core=256), report(9.5)],
        ("v6e:16x16", 0.46): [report(7.25), report(40, fits=False)],
    }
    _, _, fit, too_much = tpu_plan.table(plans).splitlines()
    flags = "stage 2: `--micro_batch_size=8`"
    assert fit == f"| v5e:16x16 | 256 | 256, 128 | 7.2, 9.5 of 15.8 | {flags} | 40.0 | 80.0 |"
    name = "v6e:16x16, records 46% full in stage 2"
    assert too_much == f"| {name} | 256 | 128, 128 | 7.2, 40.0: too much of 15.8 |  |  |  |"


def test_a_script_that_leaves_no_report_ends_the_program_with_what_it_said(tmp_path):
    report = tpu_plan.compile_only(tmp_path, "--tpu_topology=v3:banana")
    with pytest.raises(SystemExit, match=r"(?s)ended with 2:.*--tpu_topology=v3:banana"):
        report("compile_report.json")
