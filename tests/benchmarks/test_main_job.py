from benchmarks import main_job


def test_the_share_of_time_that_waited_for_input():
    records = [
        {"step": 0, "eval_loss": 7.0},
        {"step": 50, "steps_per_sec": 1.0, "input_wait": 0.9},  # the first steps compile
        {"step": 100, "steps_per_sec": 50.0, "input_wait": 0.0},  # 1 s
        {"step": 250, "steps_per_sec": 50.0, "input_wait": 0.04},  # 3 s
        {"step": 250, "eval_loss": 6.0},
    ]
    assert abs(main_job.wait_share(records) - 0.03) < 1e-9
