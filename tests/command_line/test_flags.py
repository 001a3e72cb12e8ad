"""How fields become flags, how flags are parsed, and the checks of values."""

import dataclasses

import pytest

from bert_estimator.command_line import flags


@flags.group()
class Common:
    learning_rate: float = flags.field(5e-5, "Set the rate.")
    train_batch_size: int = flags.field(32, "Set the batch.", is_setting=False, may_differ=True)
    not_a_flag: str = "value"


@flags.group()
class Config(Common):
    use_tpu: bool = flags.field(False, "Use a TPU.")
    do_eval: bool = flags.field(None, "Evaluate.")
    tpu_name: str | None = flags.field(None, "Name the TPU.")
    num_tpu_cores: int | None = flags.field(None, "Set the number of cores.")
    train_batch_size: int = flags.field(64, "Set another batch.")


def defined():
    return flags.define(Config)


def test_fields_are_flags_of_their_names_types_and_defaults():
    values = defined()
    assert flags.parse(values, ["script"]) == set()
    assert {name: values[name].value for name in values} == {
        "learning_rate": 5e-5,
        "train_batch_size": 64,
        "use_tpu": False,
        "do_eval": None,
        "tpu_name": None,
        "num_tpu_cores": None,
    }
    kinds = {name: values[name].flag_type() for name in values}
    assert (kinds["tpu_name"], kinds["num_tpu_cores"]) == ("string", "int")
    assert (kinds["use_tpu"], kinds["do_eval"], kinds["learning_rate"]) == ("bool", "bool", "float")
    assert "Set another batch." in values.get_help()
    settings = {flag.name: flag.metadata["is_setting"] for flag in flags.of(Common)}
    assert settings == {"learning_rate": True, "train_batch_size": False}


@flags.group(flags.TRAINING, may_differ=flags.EVALUATING)
class Schedule:
    steps: int = flags.field(10, "Train.", flags.positive, flags.at_most(99))
    warmup: int = flags.field(1, "Warm up.", flags.not_negative)


@flags.group()
class LongSchedule(Schedule):
    steps: int = flags.field(90, "Train long.", heading=flags.TRAINING)
    power: float = flags.field(1.0, "Decay.", heading=flags.TRAINING)


@flags.group()
class Grouped:
    output_dir: str = flags.field("runs", "Write here.", heading=flags.COMMON)
    schedule: Schedule = flags.member(Schedule)
    optimizer: str | None = flags.field(
        None, "Choose.", flags.one_of(("lamb", "adamw")), heading=flags.TRAINING
    )
    sources: dict = dataclasses.field(default_factory=dict)


@flags.group()
class LongGrouped(Grouped):
    schedule: LongSchedule = flags.member(LongSchedule)


def test_a_group_says_what_its_flags_leave_open():
    metadata = {flag.name: flag.metadata for flag in flags.of(LongGrouped)}
    may_differ = {name: of_flag["may_differ"] for name, of_flag in metadata.items()}
    # What a class says is for the fields of the class, not of its base.
    expected = {"output_dir": False, "steps": False, "warmup": flags.EVALUATING, "power": False}
    assert may_differ == {**expected, "optimizer": False}
    assert metadata["steps"]["heading"] == flags.TRAINING
    assert all(of_flag["is_setting"] for of_flag in metadata.values())


def test_groups_are_flat():
    config = flags.build(LongGrouped, {"warmup": 3, "output_dir": "here"}, sources={"warmup": 1})
    values = {"output_dir": "here", "steps": 90, "warmup": 3, "power": 1.0, "optimizer": None}
    assert flags.values_of(config) == values
    assert list(flags.values_of(config)) == [flag.name for flag in flags.of(LongGrouped)]
    assert (config.schedule, config.sources) == (LongSchedule(warmup=3), {"warmup": 1})
    other = flags.changed(config, warmup=5, sources={})
    assert (other.schedule.warmup, other.output_dir, other.sources) == (5, "here", {})
    assert (config.schedule.warmup, config.sources) == (3, {"warmup": 1})
    with pytest.raises(TypeError, match="LongGrouped does not have decay"):
        flags.changed(config, decay=1)


def test_help_has_own_flags_before_those_of_groups():
    names = {
        heading: [flag.name for flag in fields]
        for heading, fields in flags.by_heading(LongGrouped).items()
        if fields
    }
    assert names == {
        flags.COMMON: ["output_dir"],
        flags.TRAINING: ["optimizer", "steps", "warmup", "power"],
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, None),
        ({"steps": 99, "warmup": 0, "optimizer": "adamw"}, None),
        ({"steps": 0}, "--steps=0: must be positive"),
        ({"steps": 100}, "--steps=100: must be at most 99"),
        ({"warmup": -1}, "--warmup=-1: must not be negative"),
        ({"optimizer": "lam"}, "--optimizer=lam: must be one of lamb, adamw; did you mean lamb?"),
    ],
)
def test_values_are_checked_at_their_fields(values, message):
    config = flags.build(Grouped, values)
    if message is None:
        flags.check_values(config)
    else:
        with pytest.raises(flags.FlagError) as caught:
            flags.check_values(config)
        assert str(caught.value) == message


def test_an_error_is_named_by_its_flag():
    with flags.named("input_file"):
        pass
    for error, message in (
        (ValueError("cut short"), "--input_file: cut short"),
        (flags.FlagError("--vocab_file: is not there"), "--vocab_file: is not there"),
        (FileNotFoundError(2, "No such file", "v.txt"), "--input_file: v.txt: No such file"),
        (IsADirectoryError("a folder"), "--input_file: a folder"),
    ):
        with pytest.raises(flags.FlagError) as caught, flags.named("input_file"):
            raise error
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--learning_rate=1: 2", r"^--learning_rate=1: must be a number$"),
        ("--learning_rate", r"Missing value for flag --learning_rate"),
    ],
)
def test_what_cannot_be_parsed(argument, message):
    with pytest.raises(flags.FlagError, match=message):
        flags.parse(defined(), ["script", argument])


def test_flags_from_a_file(tmp_path):
    file, inner = tmp_path / "flags.txt", tmp_path / "inner.txt"
    inner.write_text("--do_eval\n")
    file.write_text(
        "# the flags of a run\n"
        "// absl takes these comments too\n\n"
        "--learning_rate=1e-3\n--train_batch_size=8\n--nouse_tpu\n--tpu_name=two words\n"
        f"--flagfile={inner}\n"
    )
    # Of a flag that is given twice the last value counts, wherever it stands.
    for arguments, size in (
        ([f"--flagfile={file}"], 8),
        (["--train_batch_size=16", f"--flagfile={file}"], 8),
        ([f"--flagfile={file}", "--train_batch_size=16"], 16),
    ):
        values = defined()
        given = flags.parse(values, ["script", *arguments])
        assert given == {"learning_rate", "train_batch_size", "use_tpu", "do_eval", "tpu_name"}
        assert values["train_batch_size"].value == size
        assert (values["learning_rate"].value, values["use_tpu"].value) == (1e-3, False)
        assert (values["tpu_name"].value, values["do_eval"].value) == ("two words", True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"--learning_rat=1\n", r"^--learning_rat: no such flag; did you mean --learning_rate\?$"),
        (b"--train_batch_size=9999999999\n", r"^--train_batch_size=9999999999: cannot be beyond"),
        (b"--tpu_name=\xff\n", r"^--flagfile: must be a text file in UTF-8: .* byte 0xff"),
        (b"--tpu_name=\0\n", r"^the argument '--tpu_name=\\x00' holds a NUL character"),
        (None, r"^--flagfile: cannot be read: .*No such file or directory: '.*flags.txt'$"),
    ],
)
def test_wrong_flags_in_a_file(tmp_path, content, message):
    file = tmp_path / "flags.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(flags.FlagError, match=message):
        flags.parse(defined(), ["script", f"--flagfile={file}"])


def test_patterns(tmp_path):
    for name in ("train-0", "train-1"):
        (tmp_path / name).write_text("")
    flags.check_patterns("input_file", None)
    flags.check_patterns("input_file", f"{tmp_path}/train-*,{tmp_path}/train-0,gs://bucket/x*")
    message = rf"--input_file=.*: no file matches '{tmp_path}/eval-\*'; give record files"
    with pytest.raises(flags.FlagError, match=message):
        flags.check_patterns("input_file", f"{tmp_path}/train-*,{tmp_path}/eval-*")
    flags.check_patterns("input_file", str(tmp_path))  # its files are looked for later
    with pytest.raises(flags.FlagError, match="no file matches"):
        flags.check_patterns("input_file", f"{tmp_path}/none")


def test_directories_are_made(tmp_path, monkeypatch):
    made = tmp_path / "a" / "b"
    flags.make_directory("output_dir", str(made))
    assert made.is_dir()
    with pytest.raises(flags.FlagError, match="gs://bucket/run: must be a directory of this"):
        flags.make_directory("output_dir", "gs://bucket/run")
    (made / "file").write_text("")
    for path in (made / "file", made / "file" / "below"):
        with pytest.raises(flags.FlagError, match=f"--output_dir={path}: is a file, or below one"):
            flags.make_directory("output_dir", str(path))
    with pytest.raises(flags.FlagError, match="--output_dir=: cannot be made"):
        flags.make_directory("output_dir", "")
    # Modes do not stop the superuser, whom tests may run as.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    message = f"--output_dir={made}: is not writable by this user; choose another directory"
    with pytest.raises(flags.FlagError, match=message):
        flags.make_directory("output_dir", str(made))


def test_hosts_are_those_of_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert flags.find_hosts().number == 1
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"ps": ["a:1"]}}')
    message = r'^If "cluster" is set in TF_CONFIG, it must have one "chief"'
    with pytest.raises(flags.FlagError, match=message):
        flags.find_hosts()
