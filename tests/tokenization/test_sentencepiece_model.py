"""SentencePiece's models as messages, against the package's own tokenizer and its own module."""

import pathlib

import pytest
import sentencepiece
from google.protobuf.message import DecodeError

from bert_estimator.tokenization import sentencepiece_model

GOLDENS = pathlib.Path(__file__).parent / "goldens"
# The fields that are described, by their message.
FIELDS = {
    "trainer_spec": ("model_type", "treat_whitespace_as_suffix", "byte_fallback"),
    "normalizer_spec": ("precompiled_charsmap", "add_dummy_prefix"),
}


@pytest.fixture(params=["unigram", "bpe"])
def model(request):
    return (GOLDENS / f"{request.param}.model").read_bytes()


def test_the_pieces_are_those_of_the_tokenizer(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = sentencepiece_model.parse(model).pieces
    assert [piece.piece for piece in pieces] == [
        processor.id_to_piece(number) for number in range(processor.vocab_size())
    ]
    unknown, control = processor.is_unknown, processor.is_control
    for number, piece in enumerate(pieces):
        is_normal = not (unknown(number) or control(number))
        assert (piece.type == sentencepiece_model.NORMAL) == is_normal


def test_what_is_not_described_is_kept(model):
    again = sentencepiece_model.parse(model).SerializeToString()
    processors = [sentencepiece.SentencePieceProcessor(model_proto=m) for m in (model, again)]
    text = "Two of the words, 2,019 and naïve ones"
    first, second = (processor.encode(text) for processor in processors)
    assert len(again) == len(model) and first == second
    scores = [
        [processor.get_score(number) for number in range(processor.vocab_size())]
        for processor in processors
    ]
    assert scores[0] == scores[1]


def test_the_fields_are_those_of_the_package(model):
    try:
        from sentencepiece import sentencepiece_model_pb2
    except Exception as error:  # protobuf's VersionError, whose module older versions lack
        pytest.skip(f"the package's own module does not work with this protobuf: {error}")
    own, theirs = sentencepiece_model.parse(model), sentencepiece_model_pb2.ModelProto()
    assert theirs.trainer_spec.UNIGRAM == sentencepiece_model.UNIGRAM
    assert theirs.trainer_spec.CHAR == sentencepiece_model.CHAR
    assert theirs.SentencePiece.NORMAL == sentencepiece_model.NORMAL
    assert theirs.SentencePiece.USER_DEFINED == sentencepiece_model.USER_DEFINED
    empty = sentencepiece_model.parse(b"")
    for parsed, expected in ((own, theirs.FromString(model)), (empty, theirs)):
        for message, names in FIELDS.items():
            found, of_package = getattr(parsed, message), getattr(expected, message)
            for name in names:
                assert getattr(found, name) == getattr(of_package, name), name


def test_what_is_not_a_model():
    with pytest.raises(DecodeError):
        sentencepiece_model.parse(b"not a model")
