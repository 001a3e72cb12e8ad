"""Tests the project's English: counts patterns of speech that engineers find hard to read.

It looks at comments, docstrings, messages and flag help in Python files, and at the prose of
Markdown files. `python tests/docs/test_english.py` prints every place.
"""

import ast
import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# TF1 scripts speak as TF1 scripts did; this file has bad sentences to test itself.
SKIPPED = ("tests/legacy/scripts/", "tests/docs/test_english.py", "runs/", "build/", ".")

PATTERNS = {
    # Negate the verb: "it is not a tensor". "There is no TPU" and "no longer" are fine.
    "is no": r"(?<!there )\b(?:is|are|was|were|be|been) no\b(?! longer)|"
    r"\b(?:is|are|was|were|be|been) (?-i:none)\b",
    # Repeat the noun: "the size of a core", "the rows that are left", "such a file".
    "that of": r"\b(?:that|those) of\b|\b(?:that|those) (?:which|who)\b|\bthose that\b",
    "such": r"\bsuch(?=[,.;:)]|$)|\b(?:is|are|as|of) such\b(?! an?\b)",
    "as of": r"\bas of\b(?! (?:\d|today|now))",
    "one that": r"\bones? (?:that|which|whose|who)\b|\bnothing that\b",
    "is one": r"\b(?:is|are|was|were) (?:not )?one(?=[,.;:)]|$)",
    # Conditions begin with "if" or "when".
    "where": r"\bwhere (?:there (?:is|are)|no|none|nothing|neither|any)\b|"
    r"\b(?:none|empty|nan|also|even|(?:value|type|runtime|flag)error) where\b|"
    r"\bwhere (?:it|they|this|that) (?:has|have|gives?|is none|is not|are not|were not)\b|"
    r"(?:^|[.;:] )where (?!is\b|are\b|to\b)[^.;?]*,",
}

# A function's or class's first sentence has one of these, or begins with a verb as in "Returns".
VERB = re.compile(
    r"\b(?:is|are|was|were|has|have|had|do|does|did|can|cannot|may|must|will|would|should|might|"
    r"(?:need|give|get|take|make|run|equal|say|hold|stay|keep|depend|end|differ|arrive|work|fail|"
    r"start|begin|read|write|go|come|see|find|train|raise|return|use|leave|change|count|let|add|"
    r"sum|name|tell|ask|mean|win|survive|stop|refuse|happen|pass|save)(?:e?s)?|changed|saved|trained)\b"
)
# Flag help begins with one of these.
IMPERATIVE = re.compile(
    r"(?:add|allow|ask|assume|build|check|choose|clip|compare|compile|compute|continue|convert|copy|"
    r"correct|cut|decay|end|expect|follow|initialize|look|lower-case|multiply|open|pass|say|tokenize|"
    r"warm|weight|"
    r"draw|drop|evaluate|export|fill|give|group|ignore|keep|leave|let|limit|log|lower|make|mask|measure|"
    r"name|pad|predict|prepare|print|put|read|recompute|rehearse|repeat|report|require|restore|"
    r"resume|run|sample|save|scale|score|seed|set|share|show|shuffle|skip|split|start|stop|store|strip|"
    r"take|test|time|train|treat|tune|use|wait|write)\b",
    re.IGNORECASE,
)


def string_texts(nodes):
    """Yields (line, text) of the strings in nodes, each of which comes before its parts."""
    inside_f_strings = set()
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            inside_f_strings.update(map(id, node.values))
            parts = [v.value if isinstance(v, ast.Constant) else "x" for v in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and id(node) not in inside_f_strings:
            yield node.lineno, node.value if isinstance(node.value, str) else ""


def comment_texts(source):
    """Yields (line, text) of the runs of comments in Python source."""
    line, comment = -1, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != line + 1:
                yield line, comment
                comment = ""
            line, comment = token.start[0], f"{comment} {token.string.lstrip('# ')}"
    yield line, comment


def markdown_texts(source):
    """Yields (line, text) of the paragraphs, list items and table rows, without code."""
    source = re.sub(r"(?ms)^```.*?^```", lambda code: "\n" * code[0].count("\n"), source)
    line = 1
    for part in re.split(r"(\n\s*\n|\n(?=[|*#-]))", source):
        yield line, re.sub(r"`[^`]*`", "x", part)
        line += part.count("\n")


def docstring_faults(nodes):
    """Yields (line, pattern, text) of functions and classes whose first sentence lacks a verb."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            first = re.split(r"(?<=[.:;]) |\n\n", " ".join(ast.get_docstring(node).split()))[0]
            if not (re.match(r"\w+[^s]s\b", first) or VERB.search(first)):
                yield node.lineno, "verbless docstring", first


def help_faults(nodes):
    """Yields (line, pattern, text) of flag help that does not begin with an imperative."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        helps = [keyword.value for keyword in node.keywords if keyword.arg == "help"]
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if re.search(r"^(?:DEFINE_\w+|string|integer|boolean)$", name):
            helps += node.args[2:3]  # absl's (name, default, help)
        if name == "field" and ast.unparse(node.func) == "flags.field":
            helps += node.args[1:2]  # (default, help)
        for value in helps:
            if isinstance(value, ast.Constant | ast.JoinedStr):
                text = next(string_texts([value]))[1]
                if not IMPERATIVE.match(text):
                    yield node.lineno, "flag help", text


def faults(name, source):
    """Returns (line, pattern, text) of every place in the text of a file."""
    places = []
    if name.endswith(".py"):
        nodes = list(ast.walk(ast.parse(source)))
        places += [*docstring_faults(nodes), *help_faults(nodes)]
        texts = [*string_texts(nodes), *comment_texts(source)]
    else:
        texts = markdown_texts(source)
    for line, text in texts:
        flat = " ".join(text.split())
        for pattern, regex in PATTERNS.items():
            for match in re.finditer(regex, flat, re.IGNORECASE):
                places.append((line, pattern, flat[max(0, match.start() - 50) : match.end() + 30]))
    return places


def all_faults():
    """Yields (file, line, pattern, text) of every place in the project."""
    for path in sorted([*ROOT.rglob("*.py"), *ROOT.rglob("*.md")]):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(SKIPPED):
            for fault in faults(name, path.read_text(encoding="utf-8")):
                yield name, *fault


def test_no_pattern_is_left():
    assert not list(all_faults()), "rewrite what is new; run this file to see the places"


BAD = {
    "is no": [
        "x is no tensor",
        "The values are none of these.",
        "it was no longer one: it is no x",
    ],
    "that of": ["The size is that of a core.", "Rows are those of x.", "those that fit"],
    "such": ["arrays, or a dict of such.", "Such files are such.", "the others are such, and"],
    "as of": ["batch_size: as of `f`."],
    "one that": ["The one that is left", "ones which fit", "there is nothing that waits"],
    "is one": ["what is not one.", "A mask, if it is one, is kept"],
    "where": ["0 where it has rows", "Where it fails, stop now.", "None where it is not known"],
}
GOOD = [
    "x is not a tensor. x is None. There is no TPU, and it is no longer needed.",
    "None of the values is a tensor, as in TF1, such as a file; in such a case one core is left.",
    "The directory where the files are. Where is it? Run it where TensorFlow is installed.",
]


@pytest.mark.parametrize("pattern", BAD)
def test_bad_sentences_are_seen(pattern):
    for sentence in BAD[pattern]:
        for form in ("# {}", "# It is.\n# {}", "x = '{}'", "x = f'{{x}}: {}'", "'''Is.\n\n{}'''"):
            seen = [fault[1] for fault in faults("x.py", form.format(sentence))]
            assert seen == [pattern], form.format(sentence)
        assert [fault[1] for fault in faults("x.md", f"- `x`: {sentence}")] == [pattern], sentence


@pytest.mark.parametrize("sentence", GOOD)
def test_good_sentences_are_not(sentence):
    assert faults("x.md", sentence) == []
    assert faults("x.py", f"# {sentence}\n'''{sentence}'''") == []


def test_verbless_docstrings_and_help_are_seen():
    source = 'def f():\n  """{}"""'
    for text in ("The rows, int32 [B].", "[B, H]: the rows."):
        assert [fault[1] for fault in faults("x.py", source.format(text))] == ["verbless docstring"]
    for text in ("Returns the rows.", "Sums rows: all of them.", "The rows are sorted."):
        assert faults("x.py", source.format(text)) == []
    assert [fault[1] for fault in faults("x.py", "a('--x', help='the rows')")] == ["flag help"]
    assert [fault[1] for fault in faults("x.py", "DEFINE_x('x', 0, 'the rows')")] == ["flag help"]
    assert [fault[1] for fault in faults("x.py", "flags.field(0, 'the rows')")] == ["flag help"]
    assert faults("x.py", "a('--x', help=f'read {x} rows')") == []


if __name__ == "__main__":
    for place in all_faults():
        print("{}:{}: {}: {}".format(*place))
