"""Functions that cut texts into words, right and wrong, and Chinese text whose words are known."""

import random
import re

# No character occurs twice, so a character tells its word.
LEXICON = [
    "使用",
    "语言",
    "模型",
    "来",
    "预测",
    "下",
    "一个",
    "词",
    "的",
    "概率",
    "计算机",
    "互联网络",
]
BEGINNINGS = {word[0] for word in LEXICON}


def documents(number, seed=0):
    """Returns documents of sentences of the words, without spaces; some have a word in Latin."""
    rng = random.Random(seed)
    made = []
    for _ in range(number):
        lengths = [rng.randrange(3, 9) for _ in range(rng.randrange(2, 6))]
        sentences = ["".join(rng.choices(LEXICON, k=length)) + "。" for length in lengths]
        made.append([*sentences, f"{rng.choice(LEXICON)}{rng.choice(['Unaffable', 'café'])}!"])
    return made


def known(text):
    """Cuts a text into the words of the lexicon, runs of letters, and single characters."""
    return re.findall(rf"{'|'.join(LEXICON)}|[A-Za-zé]+|\S", text)


def in_pairs(text):
    """Joins words between spaces, two to a word."""
    words = text.split()
    return [" ".join(words[first : first + 2]) for first in range(0, len(words), 2)]


def lazily(text):
    yield from known(text)


def as_text(text):
    return text


def with_a_loss(text):
    return known(text)[:-1]


def as_numbers(text):
    return list(range(len(text)))


def as_nothing(text):
    pass


def failing(text):
    raise KeyError("a word that is not known")


NOT_A_FUNCTION = 3
