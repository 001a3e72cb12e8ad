"""Serves models over HTTP, and on a page in a browser.

    python run_classifier.py ... --do_export --output_dir=runs/mrpc
    python -m bert_estimator.serving.server runs/mrpc
    curl -d '{"instances": [{"text_a": "A text.", "text_b": "Another."}]}' \\
        http://127.0.0.1:8501/v1/models/mrpc:predict

MODEL_DIR is the directory of a run or of an export, whose newest exported model is served, and
newer ones as soon as they are there. A fine-tuned run without an exported model answers from its
best checkpoint, or else its newest. Or MODEL_DIR is any other network, which gives vectors, and
words for [MASK] if it has the head: a run of run_pretraining.py, a checkpoint of google-research/
bert, a directory of Hugging Face, or a zip archive. Requests are as for TensorFlow Serving's REST
interface; GET /openapi.json lists all of them.

Only programs on this machine reach the server, unless --host says otherwise. If the environment has
BERT_SERVE_TOKEN, or with --token_file, each request must carry the token.
"""

import argparse
import errno
import logging
import os
import re
import signal
import socket
import sys

from bert_estimator.command_line import console
from bert_estimator.serving import commands, embed
from bert_estimator.system import disk_files, memory
from bert_estimator.system.errors import FlagError

_TOKEN = "BERT_SERVE_TOKEN"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_NAMES = ("127.0.0.1", "localhost", "[::1]")  # as requests write them
# Flag, its default, the greatest value, and what it limits.
_LIMITS = (
    ("batch_size", 32, 1 << 16, "texts in a batch"),
    ("max_texts", 1024, 1 << 20, "texts in a request"),
    ("max_body_mib", 8, 1024, "MiB in the body of a request"),
    ("max_queue", 4096, 1 << 20, "texts in the queue of each model"),
)


def _parser() -> argparse.ArgumentParser:
    parser = console.parser("bert_estimator.serving.server", __doc__)
    add = parser.add_argument
    add(
        "models",
        metavar="MODEL_DIR",
        nargs="+",
        help="open the model of this directory, which is served under the directory's name; "
        "NAME=MODEL_DIR gives it another name",
    )
    add("--host", default="127.0.0.1", help="take requests on this address (default %(default)s)")
    add("--port", type=int, default=8501, help="take requests on this port (default %(default)s)")
    add("--token_file", help="read the token that requests must carry from this file")
    for name, default, _, text in _LIMITS:
        explained = f"allow at most this many {text} (default %(default)s)"
        add(f"--{name}", type=int, default=default, help=explained)
    embed.add_vector_flags(parser)
    return parser


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code, as `console.exit_code` does."""
    parser = _parser()
    args = parser.parse_intermixed_args(argv[1:])
    vectors = embed.vector_options(parser, args)
    # TensorFlow warns that sessions should not load SavedModels, which users cannot change.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    return console.exit_code(
        "serve",
        argv,
        lambda: _serve(args, vectors),
        expected=(ValueError, OSError),
        doing=None,
    )


def _serve(args, vectors):
    """Serves until a signal comes."""
    _check(args)
    paths_by_name = _named(args.models)
    token = _token(args.token_file)
    # The port is taken before TensorFlow is loaded, which takes seconds: if it is not free, this is
    # said at once.
    with _listening(args.host, args.port) as listener:
        app = _app()
        from bert_estimator.serving.server import models

        def open_one(path):
            return models.open_model(path, args.batch_size, args.max_texts, **vectors)

        def open_models(report):
            return [
                models.ServedModel(
                    name,
                    path,
                    open_one,
                    args.batch_size,
                    args.max_queue,
                    lambda batch, name=name: report(name, batch),
                )
                for name, path in paths_by_name.items()
            ]

        limits = app.Limits(args.max_texts, args.max_body_mib << 20)
        # With a token, or on another address, requests may come from anywhere, by any name.
        is_alone = args.host in _LOOPBACK and not token
        with commands.opening():
            service = app.Service(open_models, limits, token, _NAMES if is_alone else ())
        _check_vector_flags(args, vectors, service)
        _say_what(service, args, listener.getsockname()[1], token)
        server = app.Server(service)
        server.run(sockets=[listener])
    # `console` gives Ctrl-C its exit code.
    if server.stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    return 128 + server.stopped_by if server.stopped_by else 0


def _check(args):
    """Raises FlagError for numbers that cannot work."""
    for name, _, greatest, _ in _LIMITS:
        if not 0 < getattr(args, name) <= greatest:
            raise FlagError(f"--{name}={getattr(args, name)}: must be from 1 to {greatest}")
    if not 0 <= args.port < 1 << 16:
        raise FlagError(f"--port={args.port}: must be from 0, any free port, to 65535")


def _check_vector_flags(args, vectors, service):
    """Raises FlagError for flags of vectors if the models do not give vectors."""
    for name in vectors:
        is_used = any(model.opened.kind == "vectors" for model in service.models.values())
        if getattr(args, name) is not None and not is_used:
            raise FlagError(
                f"--{name}: is for networks that give vectors, but every MODEL_DIR has an exported "
                "model or a fine-tuned run"
            )


def _named(models):
    """Returns name -> directory; raises FlagError if two models have the same name."""
    from bert_estimator.serving.server.models import name_of

    named = {}
    for model in models:
        # A path may have "=" in it: if it exists, it is a path.
        given = re.fullmatch(r"([\w.-]+)=(.+)", model)
        name, path = given.groups() if given and not os.path.exists(model) else ("", model)
        name = name or name_of(path)
        if name in named:
            raise FlagError(
                f"{named[name]} and {path} would both be {name!r}; give one of them another name: "
                f"{name}2={path}"
            )
        named[name] = path
    return named


def _token(path):
    """Returns the token of a file or of the environment, or ""."""
    token = os.environ.get(_TOKEN, "")
    if path is not None:
        if why := disk_files.why_unreadable(path):
            raise FlagError(f"--token_file={path}: {why}")
        with disk_files.reading(path) as reader:
            token = reader.read(4096).decode("utf-8", "replace").strip()
        if not token:
            raise FlagError(f"--token_file={path}: is empty; write the token into it")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise FlagError(f"the token of {path or _TOKEN} must be printable ASCII without spaces")
    return token


def _listening(host, port):
    """Returns a socket that listens, so that a port that is taken is known at once."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except socket.gaierror as error:
        raise FlagError(f"--host={host}: is not an address: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise FlagError(
                f"--host={host}: is not an address of this machine; 127.0.0.1 is for programs on "
                "it, 0.0.0.0 for all others, too"
            ) from None
        why, other = os.strerror(error.errno), "another port, or --port=0 for any free port"
        raise FlagError(f"--port={port}: {why}, on {host}; choose {other}") from None


def _app():
    """Returns the module that needs the extra packages; raises FlagError if they are missing."""
    try:
        from bert_estimator.serving.server import app
    except ImportError as error:
        # A module of this project is missing, not an extra package.
        if error.name and error.name.startswith("bert_estimator"):
            raise
        raise FlagError(
            f"the server needs fastapi, prometheus_client and uvicorn ({error}). Install them: "
            "pip install 'bert-estimator[serve]'"
        ) from None
    return app


def _say_what(service, args, port, token):
    for model in service.models.values():
        opened = model.opened
        is_network = opened.kind == "vectors"
        why = ", which is neither an exported model nor a fine-tuned run" if is_network else ""
        why += "; it fills in [MASK], too" if opened.fill else ""
        print(f"{model.name}: {opened.kind}, from {opened.directory}{why}")
    if args.host not in _LOOPBACK and not token:
        print(
            f"serve: anyone who reaches this machine may use these models; set {_TOKEN} to a "
            "secret, and requests must carry it.",
            file=sys.stderr,
        )
    host = f"[{args.host}]" if ":" in args.host else args.host
    print(f"Serving on http://{host}:{port}/ until Ctrl-C.", flush=True)


def command() -> None:
    """Runs the console command `bert-serve`."""
    console.run(main, memory.keep_freed_memory)


if __name__ == "__main__":
    command()
