"""The creation of records in stages, each a list of tasks for any number of processes.

1. Each part of the text is tokenized (`tokenized_text`).
2. Documents are drawn into groups of a size that fits into memory. From each group and pass over
   the text come pairs of segments, with random next segments from the same group (`instances`).
   They are dealt to buckets.
3. Each bucket is shuffled and written as a piece of a record file (`records.encoding`).
4. Each record file is joined from its pieces.

What a task writes depends on (text, settings, number of files), but not on the processes. It has
its name only when it is complete, so a killed creation resumes with the tasks that are left. The
name of each directory of the work says what its files were made of. This module does not import
TensorFlow.
"""

import dataclasses
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence

import numpy as np

from bert_estimator.storage import remote
from bert_estimator.system import disk_files, json_files
from bert_estimator.system.splitmix import keys
from bert_estimator.tokenization import Casing, Tokenizer, reopen_tokenizer
from input_pipelines.creation import instances, tokenized_text
from input_pipelines.creation.instances import Pairs, make_pairs
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.creation.tokenized_text import TokenizedText
from input_pipelines.records import encoding
from input_pipelines.records.encoding import id_type
from input_pipelines.records.masking import MaskedExamples, num_tokens
from input_pipelines.text import segmenters
from input_pipelines.text.documents import TextPart

_VERSION = 5  # of what the work's files hold
# A line with more tokens may hold several sentences: an English sentence seldom has 128.
_LONGEST_SENTENCE = 128
_GROUPS_SEED, _ORDER_SEED = 0x6209B5, 0x04DE4
_GROUP_TOKENS = 1 << 24
_BUCKET_TOKENS = 1 << 25
# A process takes a group with all passes at once if there are so many groups.
_MANY_GROUPS = 16
# The tables of so many examples stay in the processor's cache.
_AT_ONCE = 256


@functools.lru_cache(maxsize=1)
def _opened(vocab_file, casing, sha256):
    """Opens a tokenizer once for each content of a file, which may change while a worker lives."""
    tokenizer = reopen_tokenizer(vocab_file, casing)
    with open(remote.local(vocab_file), "rb") as file:
        check_unchanged(vocab_file, sha256, hashlib.sha256(file.read()).hexdigest())
    return tokenizer


def check_unchanged(vocab_file: str, sha256: str, current_sha256: str) -> None:
    """Raises ValueError if a vocabulary has another hash than at the beginning of the creation."""
    if current_sha256 != sha256:
        raise ValueError(
            f"{vocab_file}: has changed while records were made with it. Put the original back and "
            "give the command again, which resumes; or remove the records, and make them again."
        )


@dataclasses.dataclass(frozen=True)
class Work:
    """Says what to make, and where; all tasks of a creation share it."""

    directory: str  # where unfinished work is
    vocab_file: str
    vocab_sha256: str
    casing: Casing
    settings: CreationSettings
    is_dynamic: bool  # whether the records have no masks
    output_files: tuple[str, ...]
    segmenter_sha256: str | None = None  # of the files of its modules
    # The sizes of the second and third stage; 0 and empty before `planned`.
    num_groups: int = 0
    num_buckets: int = 0
    parts: tuple[str, ...] = ()  # paths of the tokenized parts
    stage: str = ""  # the subdirectory of the pairs and pieces

    def planned(self, text: TokenizedText, identity: str) -> "Work":
        """Returns this work with the sizes of all stages, by the text and a hash of its parts."""
        # A bucket is shuffled in memory, and belongs to one file, so each file has a whole number.
        buckets = text.num_tokens * self.settings.dupe_factor / _BUCKET_TOKENS
        per_file = max(1, round(buckets / len(self.output_files)))
        # The directory's name is a hash of all that pairs and pieces are made of: other settings
        # never resume with these.
        described = [
            _VERSION,
            identity,
            self.vocabulary,
            self.settings.described(),
            self.is_dynamic,
            [os.path.basename(path) for path in self.output_files],
            text.sha256,
        ]
        digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()
        return dataclasses.replace(
            self,
            num_groups=max(1, round(text.num_tokens / _GROUP_TOKENS)),
            num_buckets=per_file * len(self.output_files),
            parts=tuple(text.paths),
            stage=os.path.join(self.directory, f"pairs-{digest[:32]}"),
        )

    @property
    def tokenizer(self) -> Tokenizer:
        return _opened(self.vocab_file, self.casing, self.vocab_sha256)

    @property
    def vocabulary(self) -> list[str | bool | None]:
        """What the tokens depend on; what is usual does not count, as before it could be chosen."""
        lower, strip = self.casing
        segmenter = self.settings.word_segmenter
        words = [segmenter, self.segmenter_sha256] if segmenter else []
        return [self.vocab_sha256, lower, *([] if strip is None else [strip]), *words]

    @property
    def id_type(self) -> np.dtype:
        """The type of the ids of tokens before they are records."""
        is_marked = self.settings.word_segmenter
        return segmenters.ID_TYPE if is_marked else id_type(self.tokenizer.vocab_size)

    @property
    def longest_sentence(self) -> int:
        """The most tokens of a line that is not split: more are cut off, or are a paragraph."""
        return min(_LONGEST_SENTENCE, self.settings.max_seq_length - 3)

    def pair_file(self, group: int, turn: int) -> str:
        return os.path.join(self.stage, f"pairs-{group:05d}-{turn:03d}")

    def pair_files(self) -> list[str]:
        turns = range(self.settings.dupe_factor)
        return [self.pair_file(g, t) for g in range(self.num_groups) for t in turns]

    def piece(self, bucket: int) -> str:
        return os.path.join(self.stage, f"piece-{bucket:05d}")


def tokenize(task: tuple[Work, TextPart, str]) -> int:
    """Tokenizes a part of the text; returns its size in bytes. The task is (work, part, path)."""
    work, part, path = task
    if not tokenized_text.is_written(path):
        chosen = part.options.new_filter()
        documents = part.documents(chosen)
        longest = None if part.options.split_sentences == "no" else work.longest_sentence
        segmenter, source = work.settings.word_segmenter, f"{part.path}, from byte {part.start}: "
        tokenized_text.write_part(
            documents, work.tokenizer, path, chosen.left_out, longest, segmenter, source
        )
    return part.size


def pair_tasks(work: Work) -> list[tuple[Work, int, tuple[int, ...]]]:
    """Returns the tasks of `write_pairs`."""
    turns = tuple(range(work.settings.dupe_factor))
    by_turn = [(turn,) for turn in turns] if work.num_groups < _MANY_GROUPS else [turns]
    return [(work, group, some) for group in range(work.num_groups) for some in by_turn]


def write_pairs(task: tuple[Work, int, tuple[int, ...]]) -> int:
    """Makes the pairs of a group, of some turns; the task is (work, group, turns)."""
    work, group, turns = task
    # The text of a group is loaded only if a turn is left, since that takes most of the memory.
    left = [t for t in turns if not instances.pairs_are_written(work.pair_file(group, t))]
    if not left:
        return len(turns)
    seed, num_groups = work.settings.random_seed, work.num_groups
    text = TokenizedText(work.parts).load(
        lambda numbers: group_of(numbers, seed, num_groups) == group, work.id_type
    )
    separator = work.tokenizer.sep_id if work.settings.across_documents else None
    for turn in left:
        pairs, used = make_pairs(text, work.settings, turn, separator)
        instances.write_pairs(pairs, used, work.pair_file(group, turn), work.num_buckets, seed)
    return len(turns)


def group_of(numbers: np.ndarray, seed: int, num_groups: int) -> np.ndarray:
    """Returns the group of each document, int64, by the documents' numbers."""
    return (keys(seed ^ _GROUPS_SEED, numbers) % np.uint64(num_groups)).astype(np.int64)


def piece_tasks(work: Work) -> list[tuple[Work, int, list[int]]]:
    """Returns the tasks of `write_piece`."""
    counts = [instances.num_pairs(path) for path in work.pair_files()]
    firsts = (np.cumsum([0, *counts])[:-1] % work.num_buckets).tolist()
    return [(work, bucket, firsts) for bucket in range(work.num_buckets)]


def write_piece(task: tuple[Work, int, list[int]]) -> int:
    """Writes the records of a bucket, shuffled, for (work, bucket, first bucket of each file)."""
    work, bucket, firsts = task
    index = shard_of(work, bucket)
    files = [work.piece(bucket), work.piece(bucket) + ".json"]
    if _is_joined(work, index) or all(map(os.path.exists, files)):
        return 1
    pairs = Pairs.joined(
        [
            instances.read_pairs(path, (bucket - first) % work.num_buckets, work.id_type)
            for path, first in zip(work.pair_files(), firsts, strict=True)
        ]
    )
    # Sorted by random keys: the order does not depend on the order in which files are read.
    order = keys(work.settings.random_seed ^ _ORDER_SEED, pairs.turns, pairs.keys)
    pairs = pairs.chosen(np.argsort(order, kind="stable"))
    serialize = serializer(work.tokenizer, work.settings, work.is_dynamic)
    digest, size = hashlib.sha256(), 0
    with disk_files.writer(work.piece(bucket), "wb") as file:
        for block in pairs.blocks(_AT_ONCE):
            content = encoding.framed(serialize(block))
            digest.update(content)
            size += len(content)
            file.write(content)
    _write_lengths(num_tokens(pairs.lengths), work.settings, work.piece(bucket))
    facts = {"num_records": len(pairs), "num_bytes": size, "sha256": digest.hexdigest()}
    _write_facts(facts, work.piece(bucket))
    return 1


def serializer(
    tokenizer: Tokenizer, settings: CreationSettings, is_dynamic: bool
) -> Callable[[Pairs], list[bytes]]:
    """Returns a function that serializes pairs as `tf.train.Example`s: without masks, or with masks
    that depend on the settings' seed, and the pairs' turns and keys."""
    has_words = bool(settings.word_segmenter)
    if is_dynamic:
        return functools.partial(_without_masks, id_type(tokenizer.vocab_size), has_words)
    examples = MaskedExamples(
        tokenizer,
        settings.max_seq_length,
        settings.masked_lm_prob,
        settings.max_predictions_per_seq,
        settings.unit,
        settings.random_seed,
    )
    return functools.partial(_with_masks, examples, has_words)


def _with_masks(examples, has_words, pairs):
    tokens, continues = segmenters.unmarked(pairs.tokens) if has_words else (pairs.tokens, None)
    features = examples.features(
        tokens, pairs.lengths, pairs.labels[:, None], pairs.keys, pairs.turns, continues
    )
    return encoding.examples(
        {
            name: (
                encoding.float_feature if values.dtype == np.float32 else encoding.int64_feature
            )(values)
            for name, values in features.items()
        }
    )


def _without_masks(dtype, has_words, pairs):
    sizes = pairs.lengths.sum(axis=1)
    is_token = np.arange(sizes.max()) < sizes[:, None]
    ids = np.zeros(is_token.shape, dtype)
    features = {
        "segment_lengths": encoding.int64_feature(pairs.lengths),
        "next_sentence_labels": encoding.int64_feature(pairs.labels[:, None]),
    }
    tokens = pairs.tokens
    if has_words:
        continues = np.zeros(is_token.shape, bool)
        tokens, continues[is_token] = segmenters.unmarked(tokens)
        bits = np.packbits(continues, axis=1)
        features["continues_word"] = encoding.bytes_feature(bits, is_token[:, ::8])
    ids[is_token] = tokens
    kept = np.repeat(is_token, dtype.itemsize, axis=1)
    features["token_ids"] = encoding.bytes_feature(ids.view(np.uint8), kept)
    return encoding.examples(features)


def shard_of(work: Work, bucket: int) -> int:
    """Returns the number of the file that the records of a bucket are in."""
    return bucket * len(work.output_files) // work.num_buckets


def join_pieces(task: tuple[Work, int]) -> dict[str, int | str]:
    """Joins the pieces of a record file; returns its facts. The task is (work, number of file)."""
    work, index = task
    path = work.output_files[index]
    if not _is_joined(work, index):
        buckets = [b for b in range(work.num_buckets) if shard_of(work, b) == index]
        pieces = [work.piece(bucket) for bucket in buckets]
        facts = [json_files.read(piece + ".json") for piece in pieces]
        digest = hashlib.sha256()
        # A glob over the record files does not match an unfinished one.
        directory, name = os.path.split(path)
        temporary = os.path.join(directory, f"temporary.{name}.part")
        with open(temporary, "wb") as file:
            for piece in pieces:
                with open(piece, "rb") as source:
                    while block := source.read(1 << 22):
                        digest.update(block)
                        file.write(block)
            file.flush()
            # A file that has its name is complete on the disk, even if the machine loses power.
            os.fsync(file.fileno())
        os.replace(temporary, path)
        disk_files.sync(directory or ".")
        joined = {
            "num_records": sum(fact["num_records"] for fact in facts),
            "num_bytes": sum(fact["num_bytes"] for fact in facts),
            "sha256": digest.hexdigest(),
            "changed": os.stat(path).st_mtime_ns,
        }
        lengths = np.concatenate([np.load(piece + ".lengths.npy") for piece in pieces])
        _write_lengths(lengths, work.settings, _joined_facts(work, index))
        _write_facts(joined, _joined_facts(work, index))
        for piece in pieces:
            # The facts are written, so a killed creation does not ask for the pieces any more.
            os.remove(piece)
            os.remove(piece + ".lengths.npy")
    facts = json_files.read(_joined_facts(work, index) + ".json")
    del facts["changed"]
    return facts


def _joined_facts(work: Work, index: int) -> str:
    return os.path.join(work.stage, f"file-{index:05d}")


def _is_joined(work: Work, index: int) -> bool:
    """Returns whether a record file is complete, and has not been changed since."""
    facts, lengths = (_joined_facts(work, index) + ending for ending in (".json", ".lengths.npy"))
    path = work.output_files[index]
    if not all(map(os.path.exists, (facts, lengths, path))):
        return False
    # Size and time are enough to see a change; a hash would read all records at each resumption.
    status, known = os.stat(path), json_files.read(facts)
    return (status.st_size, status.st_mtime_ns) == (known["num_bytes"], known["changed"])


def num_used(work: Work) -> int:
    """Returns how many tokens of the text are in pairs."""
    turns = range(work.settings.dupe_factor)
    groups = range(work.num_groups)
    return sum(instances.num_used([work.pair_file(g, t) for t in turns]) for g in groups)


def lengths_of_records(work: Work) -> np.ndarray:
    """Returns the numbers of tokens of all records, in the order of the joined files."""
    files = range(len(work.output_files))
    return np.concatenate([np.load(_joined_facts(work, n) + ".lengths.npy") for n in files])


def _write_lengths(lengths, settings, path):
    with disk_files.writer(path + ".lengths.npy", "wb") as file:
        np.save(file, lengths.astype(id_type(settings.max_seq_length + 1)), allow_pickle=False)


def _write_facts(facts: dict, path: str) -> None:
    with disk_files.writer(path + ".json") as file:
        json.dump(facts, file)


def remove_other_stages(work: Work) -> None:
    """Removes what another creation, with other settings, left in the work's directory."""
    for name in os.listdir(work.directory):
        if name.startswith("pairs-") and name != os.path.basename(work.stage):
            shutil.rmtree(os.path.join(work.directory, name))


def token_paths(work: Work, parts: Sequence[TextPart]) -> tuple[list[str], str]:
    """Returns the paths of the parts' tokens, and a hash of the parts."""
    described = [_VERSION, work.longest_sentence, *work.vocabulary]
    digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()[:32]
    directory = os.path.join(work.directory, f"tokens-{digest}")
    identity = hashlib.sha256("\n".join(part.digest for part in parts).encode())
    return [os.path.join(directory, part.digest) for part in parts], identity.hexdigest()
