# ruff: noqa: B905 - zip() has no argument `strict` in Python 3.7
"""What google-research/bert's `run_squad.py` makes of questions: the oracle of windows and answers.

    cd tests/input_pipelines/tasks && TF115/bin/python squad_oracle.py squad_goldens

It is for TF 1.15 on Python 3.7 and needs nothing of this project. Its rules were written down from
the description of BERT's paper (Devlin et al., 2018) and of google-research/bert, not from its
code. It makes up 200 questions in SQuAD's layout, and a vocabulary for them. It writes the features
of all windows, which go through TFRecords, as that script's do; and predictions, n-best lists and
null odds from the logits of `logits`.

Each answer is [text, whether its pieces were found in the words]. If not, run_squad.py returns the
words as a whole, and this project does not. If pieces occur twice in the words, run_squad.py takes
the first, and this project takes the right ones; no answer to train on is of this kind.
"""

import collections
import gzip
import json
import os
import random
import sys
import unicodedata

import numpy as np

LENGTH, STRIDE, QUERY_LENGTH = 48, 16, 12
N_BEST, MAX_ANSWER, THRESHOLD = 8, 8, -1.5

Window = collections.namedtuple("Window", "question start length tokens places best positions")


def logits(num_windows):
    """Returns random logits of starts and ends, [windows, LENGTH] each, many of them equal."""
    values = np.random.RandomState(0).normal(size=[2, num_windows, LENGTH])
    values[:, :, 0] += 2
    return np.round(values * 4).astype(np.float32) / 4


# The questions

NAMES = "Ada Lovelace|José Martí|Zoë|Bartók|O'Neill|Søren|Ngô|Émile Zola|al-Khwarizmi|李白|Gauß"
THINGS = (
    "the engine|a state-of-the-art loom|3,500 books|$5.99|50%|(see p. 7)|U.S. law|1895-1943|"
    "\"Carmen\"|rock'n'roll|北京|the ½-inch pipe|C++|naïveté|7:30 p.m.|unaffable people"
)
VERBS = "built|sold|described|lost|re-entered|didn't like|wrote about|measured|opened"
SPACES = [" "] * 150 + ["  ", "\t", "\n", " \n "] * 5 + ["\u3000", "\u00a0"]


def make_questions(generator):
    """Returns a file of SQuAD 2.0 with 200 questions on 50 texts."""
    data = []
    for number in range(10):
        paragraphs = []
        for _ in range(5):
            context = make_context(generator)
            qas = [make_question(generator, context) for _ in range(4)]
            paragraphs.append({"context": context, "qas": qas})
        data.append({"title": f"Article {number}", "paragraphs": paragraphs})
    ids = iter(range(1000))
    for article in data:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                qa["id"] = f"q{next(ids):03d}"
    return {"version": "v2.0", "data": data}


def make_context(generator):
    words = []
    for _ in range(generator.choice([1, 2, 3, 5, 9])):
        for part in (NAMES, VERBS, THINGS, "in|near|because of|with", NAMES):
            words += generator.choice(part.split("|")).split(" ")
        words[-1] += generator.choice(".!?;")
    return "".join(word + generator.choice(SPACES) for word in words)[:-1].rstrip()


def make_question(generator, context):
    words = context.split()
    asked = generator.sample(words, min(len(words), generator.choice([1, 2, 3, 9])))
    question = {"question": "What of " + " ".join(asked) + "?"}
    if generator.random() < 0.2:
        return dict(question, answers=[], is_impossible=True)
    starts = [
        i
        for i, char in enumerate(context)
        if not char.isspace() and (i == 0 or not context[i - 1].isalnum())
    ]
    start = generator.choice(starts)
    ends = [
        i
        for i in range(start + 1, min(start + 30, len(context)) + 1)
        if not context[i - 1].isspace() and (i == len(context) or not context[i].isalnum())
    ]
    end = generator.choice(ends) if ends else len(context)
    words, of_char = words_of(context)
    if " ".join(words[of_char[start] : of_char[end - 1] + 1]).count(context[start:end]) > 1:
        # run_squad.py would take the first of them, and not the answer's.
        return make_question(generator, context)
    answer = {"text": context[start:end], "answer_start": start}
    return dict(question, answers=[answer], is_impossible=False)


def make_vocabulary(content):
    """Returns a vocabulary: all characters, and some pieces of words; a few words are unknown."""
    text = json.dumps(content, ensure_ascii=False)
    words = basic(text)
    generator = random.Random(1)
    pieces = set()
    for word in sorted(set(words)):
        cut = generator.randrange(1, len(word) + 1)
        pieces.update([word[:cut], "##" + word[cut:]] if cut < len(word) else [word])
    chars = {form for word in words for char in word for form in (char, "##" + char)}
    missing = {"z", "##z"}
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return special + sorted((chars | pieces) - missing)


# Tokens


def basic(text):
    """Splits a text into lower-case words without accents, and punctuation signs."""
    out = []
    for char in text:
        kind = unicodedata.category(char)
        if char in " \t\n\r" or kind == "Zs":
            out.append(" ")
        elif kind in ("Cc", "Cf") or char in "\0\ufffd":
            continue
        elif 0x4E00 <= ord(char) <= 0x9FFF:  # the other blocks of ideographs do not occur here
            out.append(f" {char} ")
        else:
            out.append(char)
    words = []
    for word in "".join(out).split():
        plain = unicodedata.normalize("NFD", word.lower())
        plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
        for char in plain:
            is_sign = unicodedata.category(char)[0] == "P" or char in "$+<=>^`|~"
            words.append(f" {char} " if is_sign else char)
        words.append(" ")
    return "".join(words).split()


def pieces_of(vocab, word):
    pieces, start = [], 0
    while start < len(word):
        mark = "##" if start else ""
        ends = [e for e in range(len(word), start, -1) if mark + word[start:e] in vocab]
        if not ends:
            return ["[UNK]"]
        pieces.append(mark + word[start : ends[0]])
        start = ends[0]
    return pieces


def tokenize(vocab, text):
    return [piece for word in basic(text) for piece in pieces_of(vocab, word)]


# Windows


def words_of(text):
    """Returns the words between whitespace, and for each character the number of its word."""
    words, of_char, after_space = [], [], True
    for char in text:
        if char in " \t\r\n" or ord(char) == 0x202F:
            after_space = True
        elif after_space:
            words.append(char)
            after_space = False
        else:
            words[-1] += char
        of_char.append(len(words) - 1)
    return words, of_char


def windows_of(vocab, number, context, qa):
    """Returns the `Window`s of a question; `places` maps positions to numbers of words."""
    words, of_char = words_of(context)
    tokens, word_of, first_of = [], [], []
    for i, word in enumerate(words):
        first_of.append(len(tokens))
        pieces = tokenize(vocab, word)
        tokens += pieces
        word_of += [i] * len(pieces)
    answer = None
    if not qa["is_impossible"]:
        answer = answer_tokens(vocab, qa["answers"][0], of_char, first_of, tokens)
    query = tokenize(vocab, qa["question"])[:QUERY_LENGTH]
    room, spans, start = LENGTH - len(query) - 3, [], 0
    while start < len(tokens):
        length = min(room, len(tokens) - start)
        spans.append((start, length))
        if start + length == len(tokens):
            break
        start += min(length, STRIDE)
    for index, (start, length) in enumerate(spans):
        at = len(query) + 2
        places = {at + i: word_of[start + i] for i in range(length)}
        best = {at + i: is_best(spans, index, start + i) for i in range(length)}
        positions = (0, 0)
        if answer and start <= answer[0] and answer[1] < start + length:
            positions = tuple(at + token - start for token in answer)
        sequence = ["[CLS]"] + query + ["[SEP]"] + tokens[start : start + length] + ["[SEP]"]
        yield Window(number, start, length, sequence, places, best, positions)


def answer_tokens(vocab, answer, of_char, first_of, tokens):
    """Returns the first and last token: of the answer's words, or of its pieces within them."""
    start = of_char[answer["answer_start"]]
    end = of_char[answer["answer_start"] + len(answer["text"]) - 1]
    first = first_of[start]
    last = first_of[end + 1] - 1 if end + 1 < len(first_of) else len(tokens) - 1
    wanted = tokenize(vocab, answer["text"])
    for i in range(first, last + 1):
        for j in range(last, i - 1, -1):
            if tokens[i : j + 1] == wanted:
                return i, j
    return first, last


def is_best(spans, index, token):
    scores = []
    for i, (start, length) in enumerate(spans):
        if start <= token < start + length:
            context = min(token - start, start + length - 1 - token)
            scores.append((context + 0.01 * length, -i))
    return max(scores)[1] == -index


# Answers


def answers_of(words, windows, starts, ends, version_2):
    """Returns (answer, n-best list, null odds) of a question's windows."""
    found, null = [], None
    for window, start_row, end_row in zip(windows, starts, ends):
        if null is None or start_row[0] + end_row[0] < sum(null):
            null = start_row[0], end_row[0]
        for s in best_of(start_row):
            for e in best_of(end_row):
                is_inside = s in window.places and e in window.places
                if is_inside and window.best[s] and s <= e < s + MAX_ANSWER:
                    found.append((start_row[s], end_row[e], window, s, e))
    if version_2:
        found.append(null + (None, 0, 0))
    n_best, seen = [], set()
    for start, end, window, s, e in sorted(found, key=lambda each: -(each[0] + each[1])):
        if len(n_best) >= N_BEST:
            break
        text = ["", True]
        if window is not None:
            text = final_text(window, words, s, e)
            if text[0] in seen:
                continue
        seen.add(text[0])
        n_best.append((text, start, end))
    if version_2 and "" not in seen:
        n_best.append((["", True],) + null)
    if not any(text[0] for text, _, _ in n_best):  # run_squad.py's word for it
        n_best.insert(0, (["empty", True], 0.0, 0.0))
    exponents = np.exp([start + end for _, start, end in n_best])
    rows = [list(row) + [p] for row, p in zip(n_best, exponents / exponents.sum())]
    if not version_2:
        return rows[0][0], rows, 0.0
    best = next(row for row in rows if row[0][0])
    odds = sum(null) - best[1] - best[2]
    return ["", True] if odds > THRESHOLD else best[0], rows, odds


def best_of(row):
    return sorted(range(len(row)), key=lambda i: -row[i])[:N_BEST]


def final_text(window, words, s, e):
    """Returns [the part of the words that the pieces stand for, True], or [the words, False]."""
    pieces = " ".join(window.tokens[s : e + 1]).replace(" ##", "").replace("##", "")
    pieces = " ".join(pieces.split())
    whole = " ".join(words[window.places[s] : window.places[e] + 1])
    plain = " ".join(basic(whole))
    at = plain.find(pieces)
    of_whole = [i for i, c in enumerate(whole) if c != " "]
    of_plain = [i for i, c in enumerate(plain) if c != " "]
    if at < 0 or len(of_whole) != len(of_plain):
        return [whole, False]
    first, last = of_plain.index(at), of_plain.index(at + len(pieces) - 1)
    return [whole[of_whole[first] : of_whole[last] + 1], True]


# Records


def records_of(vocab, windows, path):
    """Writes features as run_squad.py does, and reads them back: name -> array of all windows."""
    import tensorflow as tf

    def values(window):
        ids = [vocab[token] for token in window.tokens]
        segments = [int(i >= min(window.places)) for i in range(len(ids))]
        pad = [0] * (LENGTH - len(ids))
        yield "input_ids", ids + pad
        yield "input_mask", [1] * len(ids) + pad
        yield "segment_ids", segments + pad
        yield "start_positions", [window.positions[0]]
        yield "end_positions", [window.positions[1]]

    with tf.python_io.TFRecordWriter(path) as writer:
        for window in windows:
            features = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=value))
                for name, value in values(window)
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    kinds = {
        name: tf.FixedLenFeature([LENGTH if name[:5] in ("input", "segme") else 1], tf.int64)
        for name in ("input_ids", "input_mask", "segment_ids", "start_positions", "end_positions")
    }
    data = tf.data.TFRecordDataset(path).map(lambda r: tf.parse_single_example(r, kinds))
    batch = data.batch(len(windows)).make_one_shot_iterator().get_next()
    with tf.Session() as session:
        return {name: value.astype(np.uint16) for name, value in session.run(batch).items()}


def main(directory):
    os.makedirs(directory, exist_ok=True)
    content = make_questions(random.Random(0))
    with open(os.path.join(directory, "questions.json"), "w", encoding="utf-8") as writer:
        json.dump(content, writer, ensure_ascii=False, indent=0)
    tokens = make_vocabulary(content)
    with open(os.path.join(directory, "vocab.txt"), "w", encoding="utf-8") as writer:
        writer.writelines(token + "\n" for token in tokens)
    vocab = {token: number for number, token in enumerate(tokens)}
    paragraphs = [paragraph for article in content["data"] for paragraph in article["paragraphs"]]
    asked = [(paragraph["context"], qa) for paragraph in paragraphs for qa in paragraph["qas"]]
    windows = [w for i, (text, qa) in enumerate(asked) for w in windows_of(vocab, i, text, qa)]
    records = os.path.join(directory, "windows.tfrecord")
    features = records_of(vocab, windows, records)
    os.remove(records)
    features["owners"] = np.array([w.question for w in windows], np.uint16)
    features["is_best"] = np.array([[w.best.get(i, False) for i in range(LENGTH)] for w in windows])
    np.savez_compressed(os.path.join(directory, "features.npz"), **features)
    starts, ends = (x.astype(np.float64).tolist() for x in logits(len(windows)))
    answers = {}
    for version_2 in (False, True):
        for i, (context, qa) in enumerate(asked):
            rows = [r for r, w in enumerate(windows) if w.question == i]
            of_question = [[values[r] for r in rows] for values in (windows, starts, ends)]
            found = answers_of(words_of(context)[0], *of_question, version_2=version_2)
            answers.setdefault(str(version_2), {})[qa["id"]] = found
    path = os.path.join(directory, "answers.json.gz")
    with open(path, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as writer:
        writer.write(json.dumps(answers, ensure_ascii=False).encode("utf-8"))


if __name__ == "__main__":
    main(sys.argv[1])
