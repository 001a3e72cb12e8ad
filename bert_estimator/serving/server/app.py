"""The server itself: routes, limits, the token, and an end that answers what was accepted.

Every answer but the page and the metrics is JSON; an error is `{"error": "a sentence"}`, as in
TensorFlow Serving. The packages of the extra [serve] are imported here and in `bodies`.
"""

import asyncio
import contextlib
import hmac
import io
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import choose_encoder
from pydantic_core import to_json
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from bert_estimator import __version__
from bert_estimator.serving.commands import TooManyWindowsError
from bert_estimator.serving.server import bodies
from bert_estimator.serving.server.batcher import Batch, QueueFullError
from bert_estimator.serving.server.models import VECTORS, ServedModel

_BODY_SECS = 30  # a body that is not there by then is refused
_LAST_SECS = 10  # at the end, clients have so long to read their answers
_REFUSE_SECS = 1  # at the end, requests on open connections are refused for so long
_LOOK_SECS = 5  # how often newer models are looked for
_NPY = "application/x-npy"
# Upper bounds of what is counted.
_SECS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# The page has its script and style in itself, and asks nobody but this server.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ABOUT = """BERT models that answer texts. Requests to models are as for TensorFlow Serving's REST
interface. `GET /v1/models` says which inputs each model has: `text_a`, and `text_b` for pairs,
or `question` and `context`. If the server has a token, a request has the header `Authorization:
Bearer TOKEN`."""
_ERROR = """`{"error": "a sentence"}`. 400: the request is wrong. 401: the token is missing. 403: it
calls this machine by another name. 404: no such model, version or path. 405: the path has another
method. 408: the body did not arrive. 413: too many texts, windows or bytes. 429: the queue is full.
500: the model failed. 503: the server is about to end."""

Handler = Callable[[Request], Awaitable[Response]]


class Limits(NamedTuple):
    """Says what is refused."""

    max_texts: int = 1024  # of a request; their windows are counted where they are computed
    max_body_bytes: int = 8 << 20  # of a request


_LIMITS = Limits()


class _Name(StringConvertor):
    """Matches the name or the version of a model in a path, without a verb that follows it."""

    regex = r"[\w.-]+"


register_url_convertor("model", _Name())


class _Route(APIRoute):
    """Calls its endpoint with the request."""

    def get_route_handler(self) -> Handler:
        # FastAPI's own handler would read the body before the token and the limits are looked at,
        # and it would take a quarter of the time of a request of a small network.
        return self.endpoint


class Metrics:
    """Has what a server counts for Prometheus; the help of each metric says what."""

    def __init__(self):
        self.registry = CollectorRegistry()  # a process may have several servers

        def make(kind, name, text, *labels, **options):
            labels = ("model", *labels)
            return kind(name, text, labels, "bert_serve", registry=self.registry, **options)

        def secs(name, text, *labels):
            return make(Histogram, f"{name}_seconds", f"Seconds {text}.", *labels, buckets=_SECS)

        self.requests = make(Counter, "requests", "Requests that were answered.", "verb", "status")
        self.request_secs = secs("request", "from a request's headers to its answer", "verb")
        self.texts = make(Counter, "texts", "Texts that were answered.")
        self.batch_texts = make(Histogram, "batch_texts", "Texts of a batch.", buckets=_SIZES)
        self.batch_secs = secs("batch", "that a batch took to compute")
        self.waited_secs = secs("waited", "that a request was in the queue")
        self.waiting = make(Gauge, "queue_texts", "Texts that wait.")
        self.cut = make(Gauge, "cut_texts", "Texts that were too long for the open model.")
        self.models = make(Info, "model", "Models that are served.")


class Service:
    """Answers requests with models, which `open_models` returns."""

    def __init__(
        self,
        open_models: Callable[[Callable[[str, Batch], None]], Sequence[ServedModel]],
        limits: Limits = _LIMITS,
        token: str = "",
        names: Sequence[str] = (),
    ):
        # `open_models` takes a function of the name of a model and each of its batches.
        self._metrics = Metrics()
        self.models = {model.name: model for model in open_models(self._count_batch)}
        # If there is a token, requests must carry it as `Authorization: Bearer TOKEN`; if there are
        # names, requests must call this machine by one of them.
        self._limits, self._token, self._names = limits, token, names
        # Whether it refuses further requests, since the server is about to end.
        self.is_closing = False
        # The bodies that are being read, which the end of the server does not wait for.
        self._reading: set[asyncio.Future] = set()
        self.app = FastAPI(
            title="bert-serve",
            version=__version__,
            description=_ABOUT,
            docs_url=None,  # the page has scripts from elsewhere
            redoc_url=None,
            lifespan=self._lifespan,
            responses={"default": {"description": _ERROR}},
            exception_handlers={HTTPException: _http_error},
        )
        self.app.router.route_class = _Route
        self._add_routes()

    def _add_routes(self):
        add = self._add
        version = "/versions/{version:model}"
        # A request is compared with one route after the other.
        for model in ("/v1/models/{name:model}", "/v1/models/{name:model}" + version):
            for verb in ("predict", "classify", "regress", "fill"):
                add(f"{model}:{verb}", self._answer, verb=verb)
            add(model, self._status, "Which version is served")
        add("/embed", self._embed, verb="embed")
        add("/", self._page, "The page", is_open=True, response_class=HTMLResponse)
        add("/health", self._health, "Whether the process runs", is_open=True)
        add("/ready", self._ready, "Whether requests are accepted", is_open=True)
        add("/metrics", self._show_metrics, "For Prometheus", response_class=PlainTextResponse)
        add("/v1/models", self._list, "What each model takes and gives")

    def _add(self, path, handler, summary="", verb="", is_open=False, **options):
        """Adds a route to which a body is posted if it has a verb."""
        named = {"in": "path", "required": True, "schema": {"type": "string"}}
        shown = {"parameters": [{"name": n, **named} for n in re.findall(r"{(\w+)", path)]}
        if verb:
            schema = bodies.BODIES[verb].model_json_schema()
            summary = schema.pop("description")
            content = {"application/json": {"schema": schema}}
            shown["requestBody"] = {"required": True, "content": content}
        options |= {"summary": summary, "openapi_extra": shown}
        options |= {"name": verb or handler.__name__.strip("_")}
        endpoint = self._endpoint(handler, verb, is_open)
        self.app.add_api_route(path, endpoint, methods=["POST" if verb else "GET"], **options)
        if not verb:
            self.app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)

    def _endpoint(self, handler: Handler, verb: str, is_open: bool) -> Handler:
        """Returns what answers a route: a handler, with the token, errors and metrics around it."""

        async def endpoint(request: Request) -> Response:
            start = time.monotonic()
            request.state.verb = verb
            try:
                if not is_open:
                    self._check_name(request)
                    self._check_token(request)
                response = await handler(request)
            except Exception as error:
                response = _error_of(error)
            if self.is_closing:  # else the client would send its next request on this connection
                response.headers["Connection"] = "close"
            if verb:
                model = request.path_params.get("name", getattr(request.state, "model", ""))
                # Names that are not served are left out: clients could make up any number of them.
                model = model if model in self.models else ""
                self._metrics.requests.labels(model, verb, response.status_code).inc()
                self._metrics.request_secs.labels(model, verb).observe(time.monotonic() - start)
            return response

        return endpoint

    def _check_name(self, request):
        """Raises HTTPException for a name that is not this machine's."""
        # A web page that someone here looks at can have its own name lead to 127.0.0.1, and then
        # read what this server answers (DNS rebinding). The browser still sends the page's name.
        name = re.sub(r":\d+$", "", request.headers.get("host", ""))
        if self._names and name.lower() not in self._names:
            raise HTTPException(
                403,
                f"this server is for programs on its machine, which call it {self._names[0]}, not "
                f"{name!r}. For others, give it a token or another --host",
            )

    def _check_token(self, request):
        if self._token:
            given = request.headers.get("authorization", "")
            # `==` takes longer the more of the token is right, which can be measured.
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                raise HTTPException(
                    401,
                    "this server wants its token, in the header Authorization: Bearer TOKEN",
                    {"WWW-Authenticate": "Bearer"},
                )

    async def _page(self, request):
        with open(os.path.join(os.path.dirname(__file__), "page.html"), encoding="utf-8") as reader:
            return HTMLResponse(reader.read(), headers={"Content-Security-Policy": _PAGE_POLICY})

    async def _health(self, request):
        return _json({"status": "ok"})

    async def _ready(self, request):
        self._check_open()
        return _json({"status": "ready"})

    async def _list(self, request):
        models = [
            {
                "name": model.name,
                "version": model.opened.version,
                "kind": model.opened.kind,
                "inputs": model.opened.inputs.names,
                "inputs_needed": model.opened.inputs.num_needed,
                "outputs": model.opened.outputs,
                "labels": model.opened.labels,
                "max_seq_length": model.opened.max_seq_length,
                "fills": model.filler is not None,
            }
            for model in self.models.values()
        ]
        return _json({"models": models})

    async def _status(self, request):
        status = {
            "version": self._model(request).opened.version,
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
        return _json({"model_version_status": [status]})

    async def _show_metrics(self, request):
        for name, model in self.models.items():
            opened = model.opened
            self._metrics.waiting.labels(name).set(sum(b.num_waiting for b in model.batchers))
            self._metrics.cut.labels(name).set(opened.num_cut())
            self._metrics.models.labels(name).info({"kind": opened.kind, "version": opened.version})
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._metrics.registry), media_type=media_type)

    def _count_batch(self, name, batch):
        self._metrics.texts.labels(name).inc(batch.num_texts)
        self._metrics.batch_texts.labels(name).observe(batch.num_texts)
        self._metrics.batch_secs.labels(name).observe(batch.secs)
        for secs in batch.waited:
            self._metrics.waited_secs.labels(name).observe(secs)

    async def _answer(self, request):
        """Answers :predict, :classify, :regress and :fill."""
        self._model(request)  # what is not served needs no body
        data, verb = await self._body(request), request.state.verb
        # Nothing waits from here until the texts are accepted: a newer model would take the place.
        model = self._model(request)
        opened = model.opened
        if verb != "predict":
            bodies.check_results(verb, opened)
        body = bodies.BODIES[verb].read(data)
        batcher = model.filler if verb == "fill" else model.batcher
        answers = await self._answers(request, batcher, body.texts(opened.inputs))
        if verb == "fill":
            return _json({"predictions": answers})
        if opened.kind == VECTORS:
            answers = [{"vector": answer["vector"].tolist()} for answer in answers]
        if verb == "predict":
            return _json(bodies.predictions(answers, body.instances is None))
        return _json(bodies.results(answers, verb))

    async def _embed(self, request):
        body = bodies.Embed.read(await self._body(request))
        name = body.model
        embedding = [n for n, model in self.models.items() if model.opened.kind == VECTORS]
        if not embedding or name not in (None, *embedding):
            wanted = "a model for vectors" if name is None else f"the model {name!r}, for vectors,"
            raise HTTPException(
                404,
                f"{wanted} is not served; served for vectors: "
                f"{', '.join(embedding) or 'nothing, since every MODEL_DIR is an exported model'}",
            )
        request.state.model = name or embedding[0]
        model = self.models[request.state.model]
        answers = await self._answers(request, model.batcher, body.texts)
        vectors = [answer["vector"] for answer in answers]
        if _NPY in request.headers.get("accept", ""):
            array = io.BytesIO()
            np.save(array, np.stack(vectors) if vectors else np.zeros([0, 0], np.float32))
            return Response(array.getvalue(), media_type=_NPY)
        rows = [vector.tolist() for vector in vectors]
        return _json({"model": request.state.model, "vectors": rows})

    def _model(self, request):
        """Returns the model that a request names; raises HTTPException if it is not served."""
        name, version = request.path_params["name"], request.path_params.get("version")
        if name not in self.models:
            raise HTTPException(
                404, f"the model {name!r} is not served; served are {', '.join(self.models)}"
            )
        model = self.models[name]
        if version not in (None, model.opened.version):
            raise HTTPException(
                404, f"{name}: version {version!r} is not served, but {model.opened.version}"
            )
        return model

    async def _body(self, request):
        """Returns the body; raises HTTPException if it is too long, or does not arrive."""
        read = asyncio.ensure_future(_read(request, self._limits.max_body_bytes))
        self._reading.add(read)
        try:
            return await asyncio.wait_for(read, _BODY_SECS)
        except asyncio.TimeoutError:
            why = f"the body did not arrive within {_BODY_SECS} s"
            raise HTTPException(408, why, {"Connection": "close"}) from None
        # `drain` cancels the reading of a body, not the request, which still gets an answer.
        except asyncio.CancelledError:
            self._check_open()
            raise
        finally:
            self._reading.discard(read)

    async def _answers(self, request, batcher, texts):
        """Returns a batcher's answers; raises ClientDisconnect if the client goes away before."""
        most = self._limits.max_texts
        if len(texts) > most:
            raise HTTPException(413, f"{len(texts)} texts are more than {most}; send fewer")
        self._check_open()  # the body may have been complete before the server began to end
        answers = batcher(texts)
        # If the client is gone while the texts wait, they are not computed.
        gone = asyncio.ensure_future(_disconnected(request))
        gone.add_done_callback(lambda gone: answers.cancel())
        try:
            return await answers
        except asyncio.CancelledError:
            if gone.done():
                raise ClientDisconnect from None
            raise
        finally:
            gone.cancel()

    def _check_open(self):
        if self.is_closing:
            raise HTTPException(503, "the server is about to end; ask another one")

    @contextlib.asynccontextmanager
    async def _lifespan(self, app):
        looks = asyncio.create_task(self._look())
        yield
        looks.cancel()
        for model in self.models.values():
            await model.close()

    async def _look(self):
        """Looks for newer models until the end."""
        while True:
            await asyncio.sleep(_LOOK_SECS)
            for model in self.models.values():
                try:
                    await model.look()
                except Exception:  # whatever it is, the open models go on
                    traceback.print_exc()

    async def drain(self) -> None:
        """Refuses further requests, and waits until the accepted ones have answers."""
        self.is_closing = True
        await asyncio.sleep(0)  # a request that was accepted just now is in its queue then
        for reading in self._reading:
            reading.cancel()
        for model in self.models.values():
            await model.drain()


class Server(uvicorn.Server):
    """Runs a service until SIGTERM or Ctrl-C; `stopped_by` is then the signal's number."""

    def __init__(self, service: Service):
        config = uvicorn.Config(
            service.app,
            log_config=None,
            log_level="critical",  # garbage would be a line each; errors are told above
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=_LAST_SECS,
        )
        super().__init__(config)
        self._service = service
        self.stopped_by: int | None = None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answers what was accepted, and closes the connections."""
        # Before uvicorn closes connections: the answers go out on them.
        await self._service.drain()
        # A connection is closed after a refusal. Those whose clients are silent are closed then.
        end = time.monotonic() + _REFUSE_SECS
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # its client does not read
        await asyncio.sleep(0)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Handles a signal: the server ends when it has answered what it has accepted."""
        # The second signal ends the process at once.
        if self.stopped_by is not None:
            os._exit(128 + sig)
        self.stopped_by, self.should_exit = sig, True
        print(
            f"\n{signal.Signals(sig).name}: the server answers what it has accepted, and ends. "
            "Send it again to exit at once.",
            file=sys.stderr,
            flush=True,
        )


async def _read(request, most):
    """Returns the body of a request; raises HTTPException if it has more bytes than `most`."""
    parts, size = [], int(request.headers.get("content-length", 0))
    # A body whose header says that it is too long is not read. Without the header, or with a wrong
    # one, the bytes are counted.
    if size <= most:
        size = 0
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > most:
                break
    if size > most:
        raise HTTPException(413, f"the body is longer than {most} bytes; send less at a time")
    return b"".join(parts)


async def _disconnected(request):
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(values, status=200, headers=None):
    return Response(to_json(values), status, headers, media_type="application/json")


def _error_of(error: Exception) -> Response:
    """Returns the response to a request that was not answered."""
    headers = None
    if isinstance(error, ClientDisconnect):
        status, message = 499, "the client has closed the connection"  # nobody reads it
    elif isinstance(error, HTTPException):
        status, message, headers = error.status_code, error.detail, error.headers
    elif isinstance(error, QueueFullError):
        status, message, headers = 429, str(error), {"Retry-After": "1"}
    elif isinstance(error, ValueError):
        status, message = 413 if isinstance(error, TooManyWindowsError) else 400, str(error)
    else:
        # An error that nobody expected: whoever runs the server gets the whole of it.
        traceback.print_exception(error)
        status, message = 500, f"the model failed: {str(error).strip() or type(error).__name__}"
    return _json({"error": message}, status, headers)


async def _http_error(request, error):
    """Answers a path that is not there, or another method than the path has."""
    path = request.url.path
    if error.status_code == 404:
        error.detail = f"{path} is not here; GET /openapi.json lists the paths"
    if error.status_code == 405:
        error.detail = f"{request.method} is not for {path}; use {error.headers['Allow']}"
    return _error_of(error)
