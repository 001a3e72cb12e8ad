# ruff: noqa: E501, RUF001 - the strings are wide and ambiguous on purpose
"""Records what other implementations make of nasty strings: goldens/tokens.json and its models.

    python -m venv VENV && VENV/bin/pip install tokenizers sentencepiece
    VENV/bin/python tests/tokenization/record_goldens.py

WordPiece is Hugging Face's `tokenizers` (Rust). SentencePiece is the library itself, with ALBERT's
rules around it written down a second time here, after the paper's code. The script needs nothing of
this project, so that the two sides can only agree by being right.
"""

import json
import os
import unicodedata

import sentencepiece
import tokenizers

DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "goldens")

ENGLISH = (
    "the quick brown fox jumps over lazy dogs while reading unaffable words about naive cafes in "
    "2019, 3,500, and 42 costs; don't re-enter state-of-the-art code (see p. 7) or you'll lose it"
)

WORDS = [
    "unaffable", "UNAFFABLE!", "don't", "it's", "state-of-the-art", "U.S.A.", "e.g.", "C++", "C#",
    "$5", "50%", "a/b", "a_b", "#tag", "@user", "x=y", "[CLS]", "[MASK] it", "[UNK]", "##ing",
    "user@example.com", "http://a.b/c?d=e&f", "1,000", "9,", "3,5,", "2019,", "v1.2.3", "--", "...",
]  # fmt: skip
ACCENTS = [
    "café", "cafe\u0301", "naïve", "Ångström", "A\u030angstro\u0308m", "İstanbul", "ISTANBUL",
    "straße", "STRASSE", "ẞ", "ﬁ", "ﬀ", "œuvre", "Ærø", "Øre", "łódź", "ÇA", "ñandú", "Žižek",
    "Đ", "ð", "þ", "ŉ", "ǆ", "Ǆ", "ὀδυσσεύς", "ΟΔΥΣΣΕΎΣ", "Σ", "ς", "й", "И\u0306", "ё", "Ї",
    "Tiếng Việt", "a\u0301\u0302\u0303", "\u0301", "e\u0323\u0302", "q\u0307\u0323", "ṩ",
]  # fmt: skip
CJK = [
    "中文", "我爱北京天安门", "日本語", "ひらがな", "カタカナ", "ｶﾀｶﾅ", "한국어", "한\u1100\u1161",
    "漢字かな交じり文", "中a文b", "a中", "中1,000文", "㐀", "\U00020000", "\U0002a700", "豈",
    "\U0002f800", "，。！？", "「引用」", "『』", "、", "〜", "ー", "々", "〇", "㍿", "①②③", "ⅣⅫ",
    "ＡＢＣ１２３", "ｈｅｌｌｏ", "\u3000中\u3000", "台灣，2019,年",
]  # fmt: skip
EMOJI = [
    "😀", "😀😀", "a😀b", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪", "🏳️‍🌈", "❤️", "☺", "✈️ fly", "#️⃣", "1️⃣", "♥♦♣♠", "→←", "∞≠≤",
    "©®™", "½¼", "x²", "H₂O", "°C", "µm", "μm", "€5", "£5", "¥5", "₿", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𝟙𝟚", "🄰", "♪♫",
]  # fmt: skip
SPACES = [
    "", " ", "\t", "\n", "\r\n", "a b", "a  b", " a ", "a\tb", "a\nb", "a\r\nb", "a\u00a0b",
    "a\u2003b", "a\u2009b", "a\u202fb", "a\u205fb", "a\u3000b", "a\u1680b", "a\u2028b", "a\u2029b",
    "a\u0085b", "a\x0bb", "a\x0cb", "a\x1cb", "a\x1fb",
]  # fmt: skip
INVISIBLE = [
    "a\u200bb", "a\u200cb", "a\u200db", "a\u200eb", "\u202eabc\u202c", "a\u2060b", "\ufeffabc",
    "a\ufeffb", "a\u00adb", "a\x00b", "a\x01b", "a\x07b", "a\x7fb", "a\x9fb", "a\ufffdb",
    "\ufffd", "a\u034fb", "a\ufe0fb", "a\u180eb", "\u200b", "\u2066x\u2069", "a\U000e0041b",
]  # fmt: skip
SCRIPTS = [
    "привет", "ПРИВЕТ", "Москва-2", "мир world", "ελληνικά", "العربية", "مَرْحَبًا", "ـــ", "١٢٣", "۱۲۳",
    "שָׁלוֹם", "שלום", "हिन्दी", "क्षत्रिय", "বাংলা", "தமிழ்", "ภาษาไทย", "ไทย 123,", "ລາວ", "မြန်မာ", "ខ្មែរ",
    "ქართული", "ᲥᲐᲠᲗᲣᲚᲘ", "հայերեն", "አማርኛ", "ᏣᎳᎩ", "ᚠᚢᚦ", "𐍈", "བོད", "ᠮᠣᠩᠭᠣᠯ", "ꙮ",
    "pаypal", "ﷺ", "mixed 混合 смесь خليط", "aБ中", "①,", "५,", "x٣,",
]  # fmt: skip
PUNCTUATION = [
    "!", "?!", "``quoted''", "''", "``", "`a`", "\"a\"", "“a”", "‘a’", "«a»", "„a“", "—a–b", "a…b",
    "¿qué?", "¡no!", "·", "•", "§5", "¶", "†", "‰", "№5", "a^b", "a~b", "a|b", "{a}", "<b>", "\\n",
    "^", "$", "`", "+", "=", "٪", "،", "؟", "।", "፡", "־", "〈a〉", "﹏", "＂", "＄", "´", "¨", "˜",
]  # fmt: skip
LONG = [
    "a" * 100, "a" * 101, "a" * 199, "a" * 200, "a" * 201, "a" * 1000, "ab" * 100, "ab" * 101,
    "é" * 200, "é" * 201, "中" * 250, "the" * 67, "😀" * 201, "-" * 300, "x" + "\u0301" * 300,
    "1" * 50 + ",", "1,000,000,000,", "word " * 60, "supercalifragilisticexpialidocious",
]  # fmt: skip
STRINGS = WORDS + ACCENTS + CJK + EMOJI + SPACES + INVISIBLE + SCRIPTS + PUNCTUATION + LONG


def vocabulary():
    """Makes a small vocabulary, which lacks every seventh character: so unknown words occur."""
    forms = [form(text) for text in [ENGLISH, *STRINGS] for form in (str, str.lower, str.upper)]
    forms += [unicodedata.normalize("NFD", form) for form in forms]
    characters = sorted({c for c in "".join(forms) if not c.isspace() and c.isprintable()})
    known = [c for i, c in enumerate(characters) if i % 7 or c.isascii()]
    words = sorted(set(ENGLISH.split()))
    pieces = sorted({w[i:j] for w in words for i in range(len(w)) for j in range(i + 2, i + 4)})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = special + known + ["##" + c for c in known] + words + pieces
    return list(dict.fromkeys(tokens + ["##" + piece for piece in pieces]))


def wordpiece(vocab, lower_case):
    """Opens Hugging Face's BERT tokenizer, with google-research/bert's longest word of 200 characters."""
    numbers = {token: number for number, token in enumerate(vocab)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(numbers, unk_token="[UNK]", max_input_chars_per_word=200)
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return [tokenizer.encode(text, add_special_tokens=False).tokens for text in STRINGS]


def train(name, model_type, normalization):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([ENGLISH, ENGLISH.replace(" ", "")] + [s for s in STRINGS if s.strip()]),
        model_prefix=os.path.join(DIRECTORY, name),
        model_type=model_type,
        vocab_size=500,
        hard_vocab_limit=False,
        character_coverage=0.98,
        normalization_rule_name=normalization,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        num_threads=1,
        minloglevel=2,
    )  # fmt: skip
    os.remove(os.path.join(DIRECTORY, name + ".vocab"))


def albert(name, lower_case):
    """ALBERT's rules: google-research/albert, tokenization.py, preprocess_text and encode_pieces."""
    model = sentencepiece.SentencePieceProcessor(
        model_file=os.path.join(DIRECTORY, name + ".model")
    )
    results = []
    for text in STRINGS:
        clean = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
        clean = "".join(
            c for c in unicodedata.normalize("NFKD", clean) if not unicodedata.combining(c)
        )
        clean = clean.lower() if lower_case else clean
        tokens = []
        for piece in model.EncodeAsPieces(clean):
            if len(piece) < 2 or piece[-1] != "," or not piece[-2].isdigit():
                tokens.append(piece)
                continue
            inner = model.EncodeAsPieces(piece[:-1].replace("\u2581", ""))
            if piece[0] != "\u2581" and inner[0][0] == "\u2581":
                inner[0:1] = [inner[0][1:]] if len(inner[0]) > 1 else []
            tokens.extend([*inner, ","])
        results.append(tokens)
    return results


def main():
    os.makedirs(DIRECTORY, exist_ok=True)
    train("unigram", "unigram", "nmt_nfkc")
    train("bpe", "bpe", "identity")
    vocab = vocabulary()
    outputs = {
        "wordpiece_uncased": wordpiece(vocab, True),
        "wordpiece_cased": wordpiece(vocab, False),
        "unigram_uncased": albert("unigram", True),
        "unigram_cased": albert("unigram", False),
        "bpe_uncased": albert("bpe", True),
    }
    recorded = {
        "versions": {
            "tokenizers": tokenizers.__version__, "sentencepiece": sentencepiece.__version__
        },
        "vocab": vocab,
        "strings": STRINGS,
        "tokens": outputs,
    }  # fmt: skip
    with open(os.path.join(DIRECTORY, "tokens.json"), "w", encoding="ascii") as file:
        json.dump(recorded, file, separators=(",", ":"))
        file.write("\n")
    print(f"{len(STRINGS)} strings, {len(vocab)} tokens")


if __name__ == "__main__":
    main()
