"""Tests where the secret of several hosts comes from, and what a proof depends on."""

import pytest

from bert_estimator.cluster import host_secret

GOOD = "0123456789abcdef"
VARIABLE, FILE = host_secret.VARIABLE, host_secret.FILE_VARIABLE


def set_all(monkeypatch, **variables):
    for name in (VARIABLE, FILE):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_secret_comes_from_the_environment_or_from_a_file(monkeypatch, tmp_path):
    set_all(monkeypatch)
    assert host_secret.find() is None
    set_all(monkeypatch, **{VARIABLE: GOOD})
    assert host_secret.find() == GOOD.encode()
    (tmp_path / "secret").write_text(f"{GOOD}\n")
    set_all(monkeypatch, **{FILE: str(tmp_path / "secret")})
    assert host_secret.find() == GOOD.encode()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({VARIABLE: ""}, rf"^\${VARIABLE}: the secret has 0 bytes, but must have 16 to 4096. Give"),
        ({VARIABLE: GOOD[1:]}, "the secret has 15 bytes"),
        ({VARIABLE: GOOD * 257}, "the secret has 4112 bytes"),
        ({VARIABLE: GOOD, FILE: "x"}, "are both set: give only one of them"),
        ({FILE: ""}, rf"^\${FILE}: '' cannot be read: No such file"),
        ({FILE: "missing"}, "'missing' cannot be read: No such file"),
        ({FILE: "."}, "'.' cannot be read: Is a directory"),
        ({FILE: "empty"}, rf"^\${FILE}: the secret has 0 bytes"),
        ({FILE: "/dev/zero"}, "the secret has 4097 bytes"),
    ],
)
def test_a_secret_that_cannot_be_used_is_an_error(monkeypatch, tmp_path, variables, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    set_all(monkeypatch, **variables)
    with pytest.raises(host_secret.SecretError, match=message):
        host_secret.find()


def test_a_proof_is_of_one_side_of_one_conversation():
    hello = {"host": 1, "nonce": "1"}
    given = [
        (b"a", "host", hello, "2"),
        (b"b", "host", hello, "2"),
        (b"a", "chief", hello, "2"),
        (b"a", "host", {**hello, "host": 2}, "2"),
        (b"a", "host", {**hello, "nonce": "2"}, "2"),
        (b"a", "host", hello, "1"),
    ]
    proofs = [host_secret.proof(*each) for each in given]
    assert len({*proofs}) == len(given)
    assert host_secret.is_same(proofs[0], host_secret.proof(*given[0]))
    assert not host_secret.is_same(proofs[0], "\u00e9")
