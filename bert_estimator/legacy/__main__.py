"""Runs a TF1 script as python would: `python -m bert_estimator.legacy SCRIPT.py [its flags]`.

`python -m bert_estimator.legacy -m package.module [its flags]` runs a module. In the place of the
script there may be a directory or a zip file that holds `__main__.py`.
"""

import importlib.util
import os
import pkgutil
import runpy
import sys
import types

import bert_estimator.legacy
from bert_estimator.legacy import children
from bert_estimator.system import lock, native_log, paths, standard_streams, ticker


def main(argv: list[str]) -> int:
    """Runs the command line; returns its exit code."""
    if argv[1:] == ["--version"]:
        print(f"bert-estimator {bert_estimator.__version__}")
        return 0
    if argv[1:2] == ["-m"] and len(argv) > 2:
        return _run_module(argv[2], argv[3:])
    if len(argv) < 2 or argv[1].startswith("-"):
        print(
            "usage: python -m bert_estimator.legacy SCRIPT.py [its flags]\n"
            "       python -m bert_estimator.legacy -m package.module [its flags]",
            file=sys.stderr,
        )
        return 2
    script = argv[1]
    module = types.ModuleType("__main__")
    try:
        paths.check_arguments(argv[1:2])
        folder, program = _program(script, module)
    except (ImportError, OSError, ValueError, SyntaxError) as error:
        what = "is not Python" if isinstance(error, SyntaxError) else "can't open it"
        print(f"python -m bert_estimator.legacy: {script}: {what}: {error}", file=sys.stderr)
        return 2
    sys.argv = argv[1:]
    sys.path[0] = folder
    _install()
    sys.modules["__main__"] = module
    return _exit_code(script, lambda: exec(program, module.__dict__))


def _program(script, module):
    """Returns the directory of a script's imports, and its code; sets attributes of its module."""
    finder = pkgutil.get_importer(script)
    if finder is None:
        with open(script, "rb") as file:
            source = file.read()
        try:
            program = compile(source, script, "exec")
        except ValueError as error:  # a zero byte, before Python 3.12
            raise SyntaxError(str(error)) from None
        module.__file__ = script
        return os.path.dirname(os.path.abspath(script)), program
    found = finder.find_spec("__main__")
    if found is None or found.loader is None:
        raise ImportError("it does not hold a file __main__.py, which Python would run")
    program = found.loader.get_code("__main__")
    module.__spec__, module.__loader__ = found, found.loader
    module.__file__, module.__package__ = found.origin, ""
    return script, program


def _run_module(name, flags):
    sys.argv = [name, *flags]
    sys.path[0] = os.getcwd()
    # Finding a module imports its package, which may import TensorFlow.
    _install()
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # The package is there; it imports something that is not.
        found = None
    except ValueError:  # The name is empty.
        found = None
    if found is None:
        print(f"python -m bert_estimator.legacy: no module named {name!r}", file=sys.stderr)
        return 2
    return _exit_code(name, lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def _install():
    with ticker.never_silent("Loading TensorFlow"):
        bert_estimator.legacy.install()


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
    native_log.quiet()  # Keras has to be imported before TensorFlow is made TensorFlow 1
    sys.exit(main(sys.argv))


if __name__ == "__main__":
    command()
