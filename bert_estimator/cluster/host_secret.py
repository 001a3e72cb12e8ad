"""The secret of a training's hosts: each host proves to the chief that it knows it, and vice versa.

It is given by an environment variable, or by a file that another one names. A proof is an HMAC of
what both sides have said, with a random number of each. So the secret does not cross the network,
and a proof that somebody has overheard is of no use later.
"""

import hashlib
import hmac
import json
import os
import secrets

VARIABLE = "BERT_ESTIMATOR_HOSTS_SECRET"
FILE_VARIABLE = "BERT_ESTIMATOR_HOSTS_SECRET_FILE"

# Whoever overhears a proof can try out short secrets.
_FEWEST_BYTES, _MOST_BYTES = 16, 4096
_HOW = (
    "Give all hosts the same secret, such as python -c 'import secrets; print(secrets.token_hex())'"
)


class SecretError(ValueError):
    """The environment does not give a secret that can be used; the text says why."""


def find() -> bytes | None:
    """Returns the secret that the environment gives; None if it gives none.

    Raises:
      SecretError: the secret is too short or too long, or its file cannot be read.
    """
    text, path = os.environ.get(VARIABLE), os.environ.get(FILE_VARIABLE)
    if text is not None and path is not None:
        raise SecretError(f"${VARIABLE} and ${FILE_VARIABLE} are both set: give only one of them")
    if path is not None:
        try:
            with open(path, "rb") as reader:
                secret = reader.read(_MOST_BYTES + 1).strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SecretError(f"${FILE_VARIABLE}: {path!r} cannot be read: {reason}") from None
    elif text is not None:
        secret = os.fsencode(text).strip()
    else:
        return None
    if not _FEWEST_BYTES <= len(secret) <= _MOST_BYTES:
        raise SecretError(
            f"${VARIABLE if path is None else FILE_VARIABLE}: the secret has {len(secret)} bytes, "
            f"but must have {_FEWEST_BYTES} to {_MOST_BYTES}. {_HOW}"
        )
    return secret


def nonce() -> str:
    """Returns a random number, as text, that nobody has used before."""
    return secrets.token_hex(32)


def proof(secret: bytes, side: str, hello: dict, challenge: str) -> str:
    """Returns what proves that a side knows the secret.

    Args:
      secret: the secret.
      side: "host" or "chief": a proof of the one is not a proof of the other.
      hello: what the host has said when it came, with its `nonce`.
      challenge: the `nonce` of the chief.
    """
    said = json.dumps([side, hello, challenge], sort_keys=True)
    return hmac.new(secret, said.encode(), hashlib.sha256).hexdigest()


def is_same(proof: str, other: str) -> bool:
    """Returns whether two proofs are equal, in a time that does not say where they differ."""
    return hmac.compare_digest(proof.encode(), other.encode())
