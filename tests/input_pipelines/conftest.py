import pytest

from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, write_vocab
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.embedded import embedded_corpus

WORDS = [f"w{i}" for i in range(40)]


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory):
    """Writes special tokens 0 to 4, `w0` to `w39` 5 to 44, `##a` to `##e` 45 to 49: 50 tokens."""
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocab.txt")
    write_vocab([*SPECIAL_TOKENS, *WORDS, *(f"##{char}" for char in "abcde")], path)
    return path


@pytest.fixture(scope="session")
def tokenizer(vocab_file):
    return FullTokenizer(vocab_file)


@pytest.fixture(scope="session")
def documents():
    """Makes six documents of five sentences of four words."""
    return [
        [
            " ".join(WORDS[(7 * document + 3 * sentence + word) % 40] for word in range(4))
            for sentence in range(5)
        ]
        for document in range(6)
    ]


@pytest.fixture
def text_file(tmp_path, documents):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents))
    return str(path)


@pytest.fixture
def record_files(tmp_path, documents, tokenizer, vocab_file):
    """Writes two files with a manifest; F = 16, P = 4, vocabulary 50."""
    files = [str(tmp_path / f"set-{i}.tfrecord") for i in range(2)]
    settings = CreationSettings(max_seq_length=16, max_predictions_per_seq=4, dupe_factor=2)
    write_pretraining_records(documents, tokenizer, vocab_file, files, settings, masking="static")
    return files


@pytest.fixture
def unmasked_files(tmp_path, documents, tokenizer, vocab_file):
    """Writes two files of the same text without masks; F = 16, P = 4, vocabulary 50."""
    files = [str(tmp_path / f"unmasked-{i}.tfrecord") for i in range(2)]
    settings = CreationSettings(max_seq_length=16, max_predictions_per_seq=4, dupe_factor=2)
    write_pretraining_records(documents, tokenizer, vocab_file, files, settings, masking="dynamic")
    return files


@pytest.fixture(scope="session")
def corpus():
    """Returns the embedded corpus, which takes seconds to read."""
    return embedded_corpus.load()
