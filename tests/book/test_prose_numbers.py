"""A number in the prose of a chapter is printed, or written in code, in its section; or it is given.

A number is a decimal, a percentage, or an integer of two digits or more, in the text of a Markdown cell, in a
caption or an alternative text, or what a formula comes to. The opening, "What to remember" and the sources
are held against the whole chapter. Where no cell can print a number, a comment in a Markdown cell of the
section gives it, where possible as the value of a formula: `<!-- given: 37 = 53 * log(2); 1.9 -->`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import xent.sequences

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
SUMMARIES = ("", "What to remember", "Sources and corrections")
GIVEN = re.compile(r"<!-- given: (.*?) -->", re.DOTALL)
BLOCK = re.compile(r"^(`{3,}|:{3,})(.*?)\n(.*?)^\1[`:]*[ \t]*$", re.DOTALL | re.MULTILINE)
PROSE_BLOCK = re.compile(
    r"\{(note|tip|warning|important|admonition|caution|hint|margin|dropdown|moving-figure)\}"
)
FORMULA = re.compile(r"(?<!\\)\$([^$]+?)(?<!\\)\$")
RESULT = re.compile(r"(?:^|\\approx)\s*[-−]?(\d[\d.]*|\.\d+)\s*$")  # a formula that is, or comes to, a number
NO_PROSE = re.compile(
    r"\$\$.*?\$\$(?:\s*\([\w-]+\))?|\{[\w:-]+\}`[^`]*`|`+[^`]+`+|<!--.*?-->|<[^>\s][^>]*>"  # code, HTML
    r"|\[[^]]*\d\]\(https?://[^)\s]*/(?:issues|pull)/[^)\s]*\)|(?<=\])\([^)\s]*\)|https?://\S+"  # addresses
    r"|^\([\w-]+\)=\s*$|^:(?!alt)[\w-]+:[^\n]*$|^#+ [^\n]*$|^\d+\. "  # labels, options, headings, lists
    # Names that end in a number, years, numbers of bits.
    r"|\b(?:Python|PyTorch|NumPy|SciPy|TensorFlow|Keras|JAX|scikit-learn|transformers|Lightning|[Vv]ersions?"
    r"|[Rr]eleases?|[Cc]hapters?|[Ss]ections?|[Rr]ows?|[Ee]rrat(?:um|a)|[Ii]ssue|[Ll]ecture|[Ee]quations?"
    r"|[Ff]igures?) #?\d[\d.]*\w?(?:(?:,| and|, and| to| or) \d[\d.]*)*|\b(?:\d+(?:, | or | and ))*\d+.bits?"
    r"|(?<!\w)(?:(?:\w+ary|March|April|May|June|July|August|\w+ber|early|mid|late|since|until)\s+(?:1[789]|20)\d\d"
    r"|\((?:1[789]|20)\d\d\)|(?:[Ii]n|of|from|by)\s+(?!2000)(?:19[5-9]|20[0-4])\d)(?![.,]?\d|\w)",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(
    r"(?<![\w.,/^-])(?=\.?\d)(\d{1,3}(?:,\d{3})+|\d*)(\.\d+)?(?![\w^])(?!,\d|\.\d|/\d)"
    r"(\s*%| per cent| percent)?"
    r"(?:(?=\s+(thousand|million|billion|kB|MB|GB|KiB|MiB|GiB)\b)|)"
)
UNITS = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "kB": 1e3, "MB": 1e6, "GB": 1e9}
UNITS |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
HEDGE = re.compile(r"\b(about|around|near|nearly|almost|roughly|some|close to|than|under|over)\s+(an?\s+)?$")
PRINTED = re.compile(
    r"(?<![\w.])(\d{1,3}(?:[,_]\d{3})+(?!\d)(?:\.\d+)?|\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE
)
ERRATA = set(re.findall(r'- id: "(\d\.\d+)"', (ROOT / "chapters/errata.yml").read_text(encoding="utf-8")))


def prose(markdown: str) -> str:
    """Leave out what is no prose."""
    text = BLOCK.sub(lambda m: m[3].replace(":alt:", "") if PROSE_BLOCK.match(m[2].strip()) else "", markdown)
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    text = FORMULA.sub(lambda m: found[1] if (found := RESULT.search(m[1])) else "x", text)
    text = NO_PROSE.sub(" ", text)
    # What stands in brackets may be the ids of errata, such as (3.12 and 3.14).
    return re.sub(
        r"\([\d., and]+\)", lambda m: "" if {*re.findall(r"[\d.]+\d", m[0])} <= ERRATA else m[0], text
    )


def numbers(text: str) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield the numbers of a text as written, with their readings: value and half a unit of the end."""
    for match in NUMBER.finditer(text):
        whole, fraction, per_cent, unit = match.groups()
        digits = whole.replace(",", "")
        if not fraction and not per_cent and len(digits) == 1:
            continue
        value, half = float((digits or "0") + (fraction or "")), 0.5 * 10.0 ** -len((fraction or ".")[1:])
        if not fraction and value and (value >= 1000 or HEDGE.search(text[: match.start()])):
            half = 0.5 * 10.0 ** (len(digits) - len(digits.rstrip("0")))  # 'about 40', '32,000'
        scales = [1.0, *([0.01] if per_cent else []), *([UNITS[unit]] if unit else [])]
        yield match[0].strip(), [(value * scale, half * scale) for scale in scales]


def printed(text: str) -> list[float]:
    """Return the numbers of an output or of code, without their signs."""
    return [float(re.sub("[,_]", "", number) + exponent) for number, exponent in PRINTED.findall(text)]


def outputs(cell: dict[str, Any]) -> str:
    """Return what a code cell prints, in words."""
    data = [{"text/plain": output.get("text", "")} | output.get("data", {}) for output in cell["outputs"]]
    texts = ["".join(d.get(kind, "")) for d in data for kind in ("text/plain", "text/html")]
    return "\n".join(re.sub("<[^>]*>", " ", text) for text in texts)


def value(formula: str) -> float:
    """Return the value of a formula of math's functions, xent.sequences, and what an experiment stored."""
    stored = {"result": lambda name: json.loads((ROOT / "experiments" / name).read_text(encoding="utf-8"))}
    plain = {f.__name__: f for f in (max, min, range, sum)}
    return abs(float(eval(formula, {"__builtins__": plain, **vars(math), **vars(xent.sequences), **stored})))


def problems(notebook: dict[str, Any]) -> list[str]:
    """Name the numbers that nothing prints, by their cells, and what is given wrongly or without need."""
    heading, found, said = "", [], []
    given: dict[tuple[str, str], str] = {}
    support: dict[str, list[float]] = {"": []}
    for number, cell in enumerate(notebook["cells"], 1):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            support[heading] += [*printed(outputs(cell)), *printed(source)]
            words = cell["metadata"].get("mystnb", {})
            texts = [words.get("figure", {}).get("caption", ""), words.get("image", {}).get("alt", "")]
            found += [(heading, number, *one) for text in texts for one in numbers(prose(text))]
            continue
        for part in re.split(r"(?m)^(?=## )", source):
            heading = part.splitlines()[0][3:].strip() if part.startswith("## ") else heading
            support.setdefault(heading, [])
            found += [(heading, number, *one) for one in numbers(prose(part))]
            rows = [row.split("=", 1) for comment in GIVEN.findall(part) for row in comment.split(";")]
            given |= {(heading, text.strip()): "".join(formula).strip() for text, *formula in rows}
    everything, needed = [x for near in support.values() for x in near], set()
    for heading, number, text, readings in found:
        near = everything if heading in SUMMARIES else support[heading]
        formula = given.get((heading, text))
        if any(abs(x - v) <= half * (1 + 1e-9) for x in near for v, half in readings):
            continue
        needed.add((heading, text))
        if formula is None:
            said.append(f"cell {number}: {text} is printed by no cell of the section {heading!r}")
        elif formula and not any(abs(value(formula) - v) <= half * (1 + 1e-9) for v, half in readings):
            said.append(f"cell {number}: {text} is given as {formula}, which is {value(formula):.6g}")
    return [
        *said,
        *(
            f"{text} is given in the section {heading!r} without need"
            for heading, text in given.keys() - needed
        ),
    ]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_number_of_the_prose_is_printed_or_given(path: Path) -> None:
    said = problems(json.loads(path.read_text(encoding="utf-8")))
    assert not said, "\n".join(f"{path.name}, {line}" for line in said)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("The loss is 2.30, a share of 4 per cent, after 400 draws; about 32,000 rows, or 16 MiB.", ""),
        ("So $x \\approx 2.31$.", "cell 1: 2.31 is printed by no cell of the section 'One'"),
        ("After 401 draws it stays. In 2019, with Python 3.12 and `0.7` (chapter 12).", "cell 1: 401 is"),
        ("Given: 0.88. <!-- given: 0.88 = 1 / (1 + exp(-2)) -->", ""),
        ("Given: 0.89. <!-- given: 0.89 = log(2) -->", "cell 1: 0.89 is given as log(2), which is 0.693147"),
        ("It is 2.30. <!-- given: 2.30 -->", "2.30 is given in the section 'One' without need"),
    ],
)  # fmt: skip
def test_a_number_that_nothing_prints_is_named(text: str, complaint: str) -> None:
    output = {"text": "loss 2.3026, share 0.0398, rows 31,874, 16777216 bytes\n"}
    code = {"cell_type": "code", "source": "draws = 400", "outputs": [output], "metadata": {}}
    said = problems({"cells": [{"cell_type": "markdown", "source": f"## One\n\n{text}"}, code]})
    assert complaint in "".join(said) and len(said) == bool(complaint)
