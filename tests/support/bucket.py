"""A stand-in for Google Cloud Storage, to which TensorFlow's own client of gs:// speaks.

It is a proxy for HTTPS that answers in Google's place, with a certificate of its own. `environment`
says how a process finds it; `fork_server` sets how often the client tries a request that fails.
"""

import contextlib
import http.server
import json
import re
import ssl
import subprocess
import threading
import time
import urllib.parse

_HOSTS = ("www.googleapis.com", "storage.googleapis.com")


class Bucket:
    """Serves buckets, made by the first write; `objects` are their bytes by "bucket/name"."""

    def __init__(self, folder):
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        names = ",".join(f"DNS:{host}" for host in _HOSTS)
        subprocess.run(
            [
                "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=stand-in",
                "-addext", f"subjectAltName={names}", "-keyout", key, "-out", certificate,
            ],
            check=True,
            capture_output=True,
        )  # fmt: skip
        self.objects, self.times, self.sessions = {}, {}, {}
        self.before_write, self.fails = lambda name: None, lambda name: False
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate, key)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.bucket = self
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        proxy = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.environment = {
            **dict.fromkeys(["https_proxy", "HTTPS_PROXY"], proxy),
            **dict.fromkeys(["no_proxy", "NO_PROXY"], "localhost,127.0.0.1"),
            "CURL_CA_BUNDLE": str(certificate),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
        }

    def put(self, name, data):
        self.before_write(name)
        if self.fails(name):
            return False
        self.objects[name], self.times[name] = data, time.time_ns()
        return True

    def names(self, prefix):
        """Returns the names of the objects below a prefix, without it."""
        return {n.removeprefix(prefix) for n in self.objects if n.startswith(prefix)} - {""}

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def do_CONNECT(self):
        self.send_response(200, "Connection established")
        self.end_headers()
        self.wfile.flush()
        context = self.server.bucket.context
        with (
            contextlib.suppress(OSError),  # a client that was killed
            context.wrap_socket(self.connection, server_side=True) as connection,
            connection.makefile("rb") as self.rfile,
        ):
            self.wfile, self.close_connection = _Writer(connection), False
            while not self.close_connection:
                self.handle_one_request()
        self.close_connection = True

    def do_GET(self):
        bucket, (path, query) = self.server.bucket, self._target()
        if match := re.fullmatch(r"/storage/v1/b/([^/]+)/o", path):
            return self._list(match[1], query)
        if match := re.fullmatch(r"/storage/v1/b/([^/]+)/o/([^/]+)", path):
            name = f"{match[1]}/{urllib.parse.unquote(match[2])}"
            if name not in bucket.objects:
                return self._answer(404)
            nanoseconds = bucket.times[name]
            seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 10**9))
            return self._json(
                {
                    "size": str(len(bucket.objects[name])),
                    "generation": str(nanoseconds),
                    "updated": f"{seconds}.{nanoseconds // 10**6 % 1000:03d}Z",
                }
            )
        if re.fullmatch(r"/storage/v1/b/[^/]+", path):
            return self._json({})
        data = bucket.objects.get(urllib.parse.unquote(path).lstrip("/"))
        if data is None:
            return self._answer(404)
        first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups()
        part = data[int(first) : int(last) + 1]
        return self._answer(206 if part else 416, part)

    def _list(self, bucket, query):
        prefix, items, prefixes = query.get("prefix", ""), [], set()
        for name in sorted(n.removeprefix(f"{bucket}/") for n in self.server.bucket.objects):
            rest = name.removeprefix(prefix)
            if not name.startswith(prefix):
                continue
            if query.get("delimiter") and "/" in rest:
                prefixes.add(f"{prefix}{rest.partition('/')[0]}/")
            else:
                items.append({"name": name})
        most = int(query.get("maxResults", 10**6))
        self._json({"items": items[:most], "prefixes": sorted(prefixes)})

    def do_POST(self):
        bucket, (path, query) = self.server.bucket, self._target()
        self._body()
        if match := re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", path):
            session = f"https://www.googleapis.com/session/{len(bucket.sessions)}"
            bucket.sessions[session] = f"{match[1]}/{query['name']}"
            return self._answer(200, headers={"Location": session})
        match = re.fullmatch(r"/storage/v1/b/([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/(.+)", path)
        source, target = (
            f"{match[i]}/{urllib.parse.unquote(match[i + 1])}" for i in (1, 3)
        )  # fmt: skip
        bucket.put(target, bucket.objects[source])
        return self._json({"done": True})

    def do_PUT(self):
        path, _ = self._target()
        name, data = self.server.bucket.sessions[f"https://www.googleapis.com{path}"], self._body()
        if self.headers.get("Content-Range", "").startswith("bytes */"):
            # It asks how much of an upload arrived that was refused: nothing did.
            return self._answer(308)
        return self._answer(200 if self.server.bucket.put(name, data) else 503)

    def do_DELETE(self):
        path, _ = self._target()
        match = re.fullmatch(r"/storage/v1/b/([^/]+)/o/(.+)", path)
        name = f"{match[1]}/{urllib.parse.unquote(match[2])}"
        self.server.bucket.before_write(name)
        self._answer(204 if self.server.bucket.objects.pop(name, None) is not None else 404)

    def _target(self):
        parts = urllib.parse.urlsplit(self.path)
        return parts.path, dict(urllib.parse.parse_qsl(parts.query))

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _json(self, value):
        self._answer(200, json.dumps(value).encode())

    def _answer(self, code, body=b"", headers=()):
        self.send_response(code)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if code != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Writer:
    """The part of a file that the handler needs, onto a socket."""

    def __init__(self, connection):
        self._connection = connection

    def write(self, data):
        self._connection.sendall(data)

    def flush(self):
        pass

    closed = False

    def close(self):
        pass
