"""Runs a TF1 script as python would: `python -m bert_estimator.legacy SCRIPT.py [its flags]`.

`python -m bert_estimator.legacy -m package.module [its flags]` runs a module. In the place of the
script there may be a directory or a zip file that holds `__main__.py`.

`--tf1` or `--tf2` before the script or `-m` says which TensorFlow the script was written for. If
neither is given, the runner finds this out from the names that the script uses.
"""

import importlib.util
import os
import pkgutil
import runpy
import sys
import types

import bert_estimator.legacy
from bert_estimator.legacy import children, script_version
from bert_estimator.system import lock, paths, standard_streams, tensorflow_import, ticker

_USAGE = """\
usage: python -m bert_estimator.legacy [--tf1 | --tf2] SCRIPT.py [its flags]
       python -m bert_estimator.legacy [--tf1 | --tf2] -m package.module [its flags]"""


def main(argv: list[str]) -> int:
    """Runs the command line; returns its exit code."""
    arguments = argv[1:]
    if arguments == ["--version"]:
        print(f"bert-estimator {bert_estimator.__version__}")
        return 0
    if arguments in (["--help"], ["-h"]):
        print(f"{_USAGE}\n\n{__doc__.strip()}")
        return 0
    given = arguments.pop(0) if arguments[:1] in (["--tf1"], ["--tf2"]) else None
    try:
        tensorflow_import.check_addresses()
        bert_estimator.legacy.check_keras()
    except (ImportError, tensorflow_import.AddressLimitError) as error:
        print(f"python -m bert_estimator.legacy: {error}", file=sys.stderr)
        return 2
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        return _run_module(arguments[1], arguments[2:], given)
    if not arguments or arguments[0].startswith("-"):
        print(_USAGE, file=sys.stderr)
        return 2
    script = arguments[0]
    module = types.ModuleType("__main__")
    try:
        paths.check_arguments(arguments[:1])
        # A script that cannot be run is reported at once, before the seconds that TensorFlow takes.
        folder, source, program = _program(script, module)
    except (ImportError, OSError, ValueError, SyntaxError) as error:
        what = "is not Python" if isinstance(error, SyntaxError) else "can't open it"
        why = getattr(error, "strerror", None) or error
        print(f"python -m bert_estimator.legacy: {script}: {what}: {why}", file=sys.stderr)
        return 2
    sys.argv = arguments
    sys.path[0] = folder
    _install(script, given, lambda: script_version.of_script(source, module.__file__, folder))
    sys.modules["__main__"] = module
    return _exit_code(script, lambda: exec(program, module.__dict__))


def _program(script, module):
    """Returns a script's folder of imports, its text and code; sets attributes of its module."""
    finder = pkgutil.get_importer(script)
    if finder is None:
        with open(script, "rb") as file:
            source = file.read()
        try:
            program = compile(source, script, "exec")
        except ValueError as error:  # a zero byte, before Python 3.12
            raise SyntaxError(str(error)) from None
        module.__file__ = script
        return os.path.dirname(os.path.abspath(script)), source, program
    found = finder.find_spec("__main__")
    if found is None or found.loader is None:
        raise ImportError("it does not hold a file __main__.py, which Python would run")
    program = found.loader.get_code("__main__")
    module.__spec__, module.__loader__ = found, found.loader
    module.__file__, module.__package__ = found.origin, ""
    return script, found.loader.get_source("__main__"), program


def _run_module(name, flags, given):
    sys.argv = [name, *flags]
    sys.path[0] = os.getcwd()
    # Finding a module imports its package, which may import TensorFlow.
    _install(name, given, lambda: script_version.of_module(name))
    try:
        found = importlib.util.find_spec(name) if name else None
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # The package is there; it imports something that is not.
        found = None
    if found is None:
        print(f"python -m bert_estimator.legacy: no module named {name!r}", file=sys.stderr)
        return 2
    return _exit_code(name, lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def _install(script, given, find_version):
    """Installs the TensorFlow that a script was written for (`given` is "--tf1", "--tf2" or None),
    and says which, if the names in the script leave a doubt."""
    with ticker.never_silent("Loading TensorFlow"), tensorflow_import.quiet():
        import tensorflow  # Keras, too, before TensorFlow is made TensorFlow 1

        tensorflow_import.find_gpus(tensorflow)
        tf2, reason = (given == "--tf2", "") if given else find_version()
        bert_estimator.legacy.install(tf2)
    if reason:
        version, other = (2, 1) if tf2 else (1, 2)
        print(
            f"{script}: runs as a script for TensorFlow {version}, because it {reason}. If it is "
            f"for TensorFlow {other}, give --tf{other} before its name",
            file=sys.stderr,
        )


def _exit_code(name, run):
    try:
        with children.following():
            run()
    except lock.InUseError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


def command() -> None:
    """Runs the console command `tpu-legacy`."""
    standard_streams.prepare()
    sys.exit(main(sys.argv))


if __name__ == "__main__":
    command()
