"""SentencePiece as ALBERT uses it (Lan et al., 2020; google-research/albert, `tokenization.py`).

Text is cleaned up, lower-cased if the model is uncased, and split by the model (unigram or
byte-pair). A piece that ends in a digit and a comma is split again, so that the pieces of "2,000,"
occur in other numbers too. The model gives the characters that it does not know as they are; they
are the unknown token, also if they spell a special token.
"""

import bisect
import itertools
import unicodedata
from collections.abc import Iterable

import sentencepiece

from bert_estimator.storage import remote
from bert_estimator.system import disk_files
from bert_estimator.tokenization import offsets
from bert_estimator.tokenization.casing import Casing
from bert_estimator.tokenization.offsets import Piece
from bert_estimator.tokenization.wordpiece import CLS, MASK, SEP, is_cjk, is_punctuation

WORD_START = "\u2581"  # SentencePiece's mark of a space before a piece

_PAD_PIECES = ("<pad>", "[PAD]")


class SentencePieceTokenizer:
    """Turns text into SentencePiece's pieces and their ids, and back; a `tokenizer.Tokenizer`."""

    def __init__(
        self, model_file: str, do_lower_case: bool = True, strip_accents: bool | None = None
    ):
        """Loads a model; raises ValueError for a file that is not a model."""
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            with disk_files.reading(remote.local(model_file)) as file:
                self._model.load_from_serialized_proto(file.read())
        except RuntimeError as error:
            raise ValueError(f"{model_file}: is not a SentencePiece model ({error})") from None
        self.do_lower_case = do_lower_case
        # Stripping also decomposes text (NFKD), and is usual for cased text, too.
        self.strips_accents = strip_accents is not False
        self.casing = Casing(do_lower_case, None if self.strips_accents else False)
        self.vocab_size = self._model.get_piece_size()
        self.cls_id, self.sep_id, self.mask_id = (
            self._special(model_file, (token,)) for token in (CLS, SEP, MASK)
        )
        self.pad_id = self._special(model_file, _PAD_PIECES)
        self.unk_id = self._model.unk_id()
        ids = range(self.vocab_size)
        self._controls = {self._model.id_to_piece(i) for i in ids if self._model.is_control(i)}

    def tokenize(self, text: str) -> list[str]:
        """Splits a text into pieces."""
        pieces: list[str] = []
        for piece in self._model.encode(self._preprocessed(text), out_type=str):
            piece = self._without_control(piece)
            if self._is_number_with_comma(piece):
                pieces += self._without_comma(piece)
            else:
                pieces.append(piece)
        return pieces

    def _preprocessed(self, text):
        return preprocess(text, self.do_lower_case, self.strips_accents)

    def tokenize_with_offsets(self, text: str) -> list[Piece]:
        """Splits a text into pieces, each with the characters of the text that it comes from."""
        chars = _preprocessed(text, self.do_lower_case, self.strips_accents)
        tokens: list[Piece] = []
        for piece, start, end in self._surfaces(offsets.joined(chars)):
            while start < end and chars[start].string.isspace():  # the mark of a space
                start += 1
            if self._is_number_with_comma(piece):
                tokens += self._number_and_comma(piece, chars[start:end])
            elif start < end:
                tokens.append(offsets.merged(piece, chars[start:end]))
            else:
                # A piece that only stands for a space comes from an empty range beside that space.
                place = chars[start].start if start < len(chars) else len(text)
                tokens.append(Piece(piece, place, place))
        return offsets.with_marks(text, tokens)

    def _surfaces(self, text: str) -> list[Piece]:
        """Returns the model's pieces of a text that `preprocess` made."""
        from sentencepiece import sentencepiece_pb2  # only for offsets: it loads protobuf

        encoded = self._model.encode(text, out_type="serialized_proto")
        pieces = sentencepiece_pb2.SentencePieceText.FromString(encoded).pieces
        # The model counts bytes.
        firsts = list(itertools.accumulate((len(char.encode()) for char in text), initial=0))
        return [
            Piece(
                self._without_control(piece.piece),
                bisect.bisect_right(firsts, piece.begin) - 1,
                bisect.bisect_left(firsts, piece.end),
            )
            for piece in pieces
        ]

    def _number_and_comma(self, piece: str, chars: list[Piece]) -> list[Piece]:
        """Returns the pieces of `_without_comma`, with the characters that they come from."""
        tokens, start = [], 0
        pieces = self._without_comma(piece)
        for part in pieces:
            end = start + len(part.replace(WORD_START, ""))
            inside = chars[start:end]
            place = chars[min(start, len(chars) - 1)].start
            tokens.append(offsets.merged(part, inside) if inside else Piece(part, place, place))
            start = end
        return tokens

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text's pieces, without special tokens."""
        return self.convert_tokens_to_ids(self.tokenize(text))

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of pieces; a piece that the model lacks gets the id of `<unk>`."""
        return [self._model.piece_to_id(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the pieces of ids; raises `IndexError` for an id outside the vocabulary."""
        return [self._model.id_to_piece(int(index)) for index in ids]

    def is_continuation(self, token: str) -> bool:
        """Returns True for a piece that continues a word."""
        # A piece starts a word if a space comes before it, or if it begins with a punctuation sign,
        # as special tokens do, or a CJK ideograph, which are words of their own in WordPiece too.
        first = token[0]
        return not (first == WORD_START or is_punctuation(first) or is_cjk(first))

    def without_accents(self, text: str) -> str:
        """Returns a text without its accents; without any, as it is."""
        decomposed = unicodedata.normalize("NFKD", text)
        return without_marks(text) if any(map(unicodedata.combining, decomposed)) else text

    def _without_control(self, piece: str) -> str:
        """Returns a piece of a text, or the unknown piece for a text that spells a special one."""
        return self._model.id_to_piece(self.unk_id) if piece in self._controls else piece

    def _is_number_with_comma(self, piece: str) -> bool:
        """Returns whether a piece of the model ends in a digit and a comma."""
        return (
            len(piece) > 1
            and piece[-1] == ","
            and piece[-2].isdigit()
            and self._model.piece_to_id(piece) != self.unk_id
        )

    def _without_comma(self, piece: str) -> list[str]:
        """Splits "▁9," into pieces of the number, encoded anew, and the comma."""
        pieces = self._model.encode(piece[:-1].replace(WORD_START, ""), out_type=str)
        if piece[0] != WORD_START and pieces and pieces[0][0] == WORD_START:
            # The model puts a space before each text; this piece did not have a space.
            pieces = pieces[1:] if len(pieces[0]) == 1 else [pieces[0][1:], *pieces[1:]]
        return [*pieces, piece[-1]]

    def _special(self, model_file: str, spellings: tuple[str, ...]) -> int:
        for token in spellings:
            index = self._model.piece_to_id(token)
            if index != self._model.unk_id():
                return index
        raise ValueError(
            f"{model_file}: does not have the piece {' or '.join(spellings)}. Train the model with "
            "input_pipelines.create_vocabulary, or with these pieces as control symbols"
        )


def preprocess(text: str, do_lower_case: bool = True, strip_accents: bool | None = None) -> str:
    """Cleans text up as ALBERT does, which by default strips the accents of cased text, too."""
    # These are the quotation marks of TeX.
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    if strip_accents is not False:
        text = without_marks(text)
    return text.lower() if do_lower_case else text


def without_marks(text: str) -> str:
    """Returns a text decomposed (NFKD), without combining marks."""
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def _preprocessed(text: str, do_lower_case: bool, strip_accents: bool = True) -> list[Piece]:
    """Returns the characters of `preprocess(text, do_lower_case, strip_accents)`."""
    chars: list[Piece] = []
    for word in offsets.words(offsets.characters(text)):
        chars += [word[0]._replace(string=" ")] if chars else []
        chars += word
    for quotes in ("``", "''"):
        chars = _replaced(chars, quotes, '"')
    if strip_accents:
        decomposed = offsets.normalized("NFKD", chars)
        chars = [char for char in decomposed if not unicodedata.combining(char.string)]
    return offsets.lowered(chars) if do_lower_case else chars


def _replaced(chars: list[Piece], old: str, new: str) -> list[Piece]:
    """Returns the characters of `joined(chars).replace(old, new)`, for a character `new`."""
    result: list[Piece] = []
    rest = iter(chars)
    for part in offsets.joined(chars).split(old):
        result += itertools.islice(rest, len(part))
        following = list(itertools.islice(rest, len(old)))
        result += [offsets.merged(new, following)] if following else []
    return result
