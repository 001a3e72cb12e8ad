"""Text in S3 is read as local text is, from a server of that protocol on this machine."""

import gzip

import pytest
from commands import MAINS
from tiny_run import words

from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab
from input_pipelines.records import manifest as manifests

server = pytest.importorskip("moto.server", reason="needs moto (pip: 'moto[server]')")
pytest.importorskip("s3fs", reason="needs s3fs")

TEXT = b"w0 w1 w2 w3\nw4 w5 w6\n\nw7 w8 w9\nw1 w3 w5\n\n" * 40


@pytest.fixture
def bucket(monkeypatch):
    """Gives the URL of a bucket with a plain and a packed file."""
    import boto3

    moto = server.ThreadedMotoServer(port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host.replace('0.0.0.0', '127.0.0.1')}:{port}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="corpus")
    client.put_object(Bucket="corpus", Key="text/a.txt", Body=TEXT)
    client.put_object(Bucket="corpus", Key="text/b.txt.gz", Body=gzip.compress(TEXT))
    yield "s3://corpus"
    moto.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_records_of_text_in_s3(bucket, tmp_path, capsys):
    write_vocab([*SPECIAL_TOKENS, *words(10)], str(tmp_path / "vocab.txt"))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_bytes(TEXT)
    (tmp_path / "text" / "b.txt.gz").write_bytes(gzip.compress(TEXT))
    hashes = []
    for name, source in (("there", bucket), ("here", tmp_path)):
        (tmp_path / name).mkdir()
        output = str(tmp_path / name / "x.tfrecord")
        argv = [
            "records", f"--input_file={source}/text", f"--vocab_file={tmp_path}/vocab.txt",
            f"--output_file={output}", "--max_seq_length=16", "--max_predictions_per_seq=4",
        ]  # fmt: skip
        assert MAINS["records"](argv) == 0
        hashes.append(manifests.sha256_of_file(output))
    assert hashes[0] == hashes[1]
    argv = ["text", f"--input_file={bucket}/none", f"--output_file={tmp_path}/t.txt"]
    assert MAINS["text"](argv) == 2
    assert f"--input_file: no file matches '{bucket}/none'" in capsys.readouterr().err
