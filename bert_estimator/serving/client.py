"""Asks `bert-serve` for vectors, as bert-as-service's client did; the standard library suffices.

BertClient().encode(["First do it", "then do it right"])  # float32 [2, width]
"""

import io
import json
import urllib.error
import urllib.request
from collections.abc import Sequence

import numpy as np

from bert_estimator.system import json_files

_TEXTS_OF_A_REQUEST = 256


class BertClient:
    """Has a server turn texts into vectors.

    Args:
      ip, port: where the server is.
      timeout: for how many milliseconds an answer is waited for; -1 is without end.
      token: the server's token, if it has one.
      model: the name of the network, if the server has several.
    """

    def __init__(
        self,
        ip: str = "localhost",
        port: int = 8501,
        timeout: int = -1,
        token: str = "",
        model: str | None = None,
    ):
        self._url = f"http://{ip}:{port}/embed"
        self._secs = None if timeout < 0 else timeout / 1000
        self._headers = {"Accept": "application/x-npy"}
        self._headers |= {"Authorization": f"Bearer {token}"} if token else {}
        self._model = {"model": model} if model else {}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors of texts, float32 [number of texts, width].

        Args:
          texts: strings; `|||` stands between the two texts of a pair. Any number is sent, in
            requests of 256.

        Raises:
          ValueError: texts is a single string, or the server refuses the texts; the message is the
            server's.
          OSError: the server cannot be reached, or does not answer in time.
        """
        if isinstance(texts, str):
            raise ValueError("texts is a single string; give a list of texts")
        firsts = range(0, max(len(texts), 1), _TEXTS_OF_A_REQUEST)
        parts = [self._vectors(texts[first : first + _TEXTS_OF_A_REQUEST]) for first in firsts]
        return np.concatenate(parts)

    def _vectors(self, texts):
        parts = [text.split("|||") for text in texts]
        body = {"texts": [p[0] if len(p) == 1 else p for p in parts], **self._model}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self._secs) as answer:
                return np.load(io.BytesIO(answer.read()))
        except urllib.error.HTTPError as error:
            with error:
                values = json_files.parse(error.read(), f"the answer of {self._url}")
            raise ValueError(values.get("error", str(error))) from None
