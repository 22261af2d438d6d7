"""A number of the prose is what a cell of its section prints, with its sign; or chapters/numbers.toml gives it.

A number is a decimal, a percentage, or an integer of two digits or more, in the text of a Markdown cell or page, in
a caption or an alternative text, or what a formula comes to. It is found in the outputs of its section's cells, or
as a literal in their code; the opening, "What to remember" and the sources are held against the whole chapter, a
row of the errata against its tests. "a ± b" has to be printed side by side, "from a to b", "a and b" in this order.

One that no cell prints is given beside the chapters, by page and section, with a formula or a source: `"37" = '53 *
log(2)'`, `"128,256" = 'from dubey2024llama'`, `"0.31, 0.33" = 'shown("mode-seeking"), shown("mode-seeking", 1)'`. So
is one whose last digit could be another without anybody's noticing, since that is printed in the section too. An
entry has all numbers of the section that are written so; `"0.31 (2 times)"` says how many, where there are several.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import dropwhile, pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import marks
import records
import xent.denominators
import xent.sequences
from book import quantities
from xent_book import pictures

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "chapters").glob("*.ipynb")), ROOT / "README.md", ROOT / "index.md"]
PAGES += [ROOT / "chapters/note_denominators.md", ROOT / "chapters/benchmarks.md"]
GIVEN = "chapters/numbers.toml"
OPENING = "Opening"  # what stands before a page's first section
SUMMARIES = (OPENING, "What to remember", "Sources and corrections")
BLOCK = re.compile(r"^(`{3,}|:{3,})(.*?)\n(.*?)^\1[`:]*[ \t]*$", re.DOTALL | re.MULTILINE)
PROSE_BLOCK = re.compile(
    r"\{(note|tip|warning|important|admonition|caution|hint|margin|dropdown|moving-figure|drawn-figure|grid.*)\}"
)
FORMULA = re.compile(r"(?<!\\)\$([^$]+?)(?<!\\)\$")
# A formula that is, or comes to, a number.
COMES_TO = re.compile(r"(?:^|\\approx)\s*([-−]?)\s*(\d[\d.]*|\.\d+)\s*$")
NO_PROSE = re.compile(
    r"\$\$.*?\$\$(?:\s*\([\w-]+\))?|\{[\w:-]+\}`[^`]*`|`+[^`]+`+|<[^>\s][^>]*>"  # code, HTML
    r"|\[[^]]*\d\]\(https?://[^)\s]*/(?:issues|pull)/[^)\s]*\)|(?<=\])\([^)\s]*\)|https?://\S+"  # addresses
    r"|^\([\w-]+\)=\s*$|^:(?!alt)[\w-]+:[^\n]*$|^#+ [^\n]*$|^\d+\. "  # labels, options, headings, lists
    r"|^\*\*Time\*\*[^\n]*"  # how long it takes to read
    # Names that end in a number, dates, numbers of bits.
    r"|\b(?:Python|PyTorch|NumPy|SciPy|TensorFlow|Keras|JAX|scikit-learn|transformers|Lightning|[Vv]ersions?"
    r"|[Rr]eleases?|[Cc]hapters?|[Ss]ections?|[Rr]ows?|[Ee]rrat(?:um|a)|[Ii]ssue|[Ll]ecture|[Ee]quations?"
    r"|[Ff]igures?|CC BY) #?\d[\d.]*\w?(?:(?:,| and|, and| to| or) \d[\d.]*)*"
    r"|(?<![\d.])(?:\d+(?:, | or | and ))*\d+.bits?\b"
    r"|(?<!\w)(?:(?:(?:\d\d? )?(?:\w+ary|March|April|May|June|July|August|\w+ber)|early|mid|late|since|until)"
    r"\s+(?:1[789]|20)\d\d|\((?:1[789]|20)\d\d\)|(?:[Ii]n|of|from|by)\s+(?!2000)(?:19[5-9]|20[0-4])\d)"
    r"(?![.,]?\d|\w)",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(
    r"(?<![\w.,/^-])(?=\.?\d)(\d{1,3}(?:,\d{3})+|\d*)(\.\d+)?(?![\w^])(?!,\d|\.\d|/\d)"
    r"(\s*%| per cent| percent)?"
    r"(?:(?=\s+(thousand|million|billion|kB|MB|GB|KiB|MiB|GiB)\b)|)"
)
UNITS = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "kB": 1e3, "MB": 1e6, "GB": 1e9}
UNITS |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
PRINTED = re.compile(
    r"(?<![\w.])(?<![\w)\]][-−])([-−]?)(\d{1,3}(?:[,_]\d{3})+(?!\d)(?:\.\d+)?|\d+\.?\d*|\.\d+)(e[-+]?\d+)?",
    re.IGNORECASE,
)
# "from 10 to 3.9", "0.31 and 0.33"; a range of the kind "0.02 to 0.03" rises.
BETWEEN = re.compile(r"\s*(±|(?:up |down )?to|and|or|,|, and)\s*")
_, ROWS = marks.read_errata(ROOT)
MARKS = marks.read_marks(ROOT)[0]
ERRATA = {row.id for row in ROWS}


@dataclass(frozen=True)
class Number:
    """A number of the prose: as written, from where to where in its text, and its readings."""

    text: str
    start: int
    end: int
    readings: tuple[tuple[float, float], ...]  # value and half a unit of its last digit

    @property
    def written(self) -> tuple[Any, ...]:
        """What tells it from any other: its digits, for a float has no more than 17, its sign and its unit."""
        return re.sub(r"[^\d.]", "", self.text), self.readings

    def fits(self, x: float) -> bool:
        """Tell whether a printed number is this one, rounded."""
        return any(abs(x - value) <= half * (1 + 1e-9) for value, half in self.readings)


def prose(markdown: str) -> str:
    """Leave out what is no prose."""
    text = BLOCK.sub(
        lambda m: prose(m[3].replace(":alt:", "")) if PROSE_BLOCK.match(m[2].strip()) else "", markdown
    )
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    text = FORMULA.sub(lambda m: "−" * bool(end[1]) + end[2] if (end := COMES_TO.search(m[1])) else "x", text)
    text = re.sub(r"\bminus (?=[\d.])", "−", NO_PROSE.sub(" ", text))
    # What stands in brackets may be the ids of errata, such as (3.12 and 3.14).
    text = re.sub(
        r"\([\d., and]+\)", lambda m: "" if {*re.findall(r"[\d.]+\d", m[0])} <= ERRATA else m[0], text
    )
    return " ".join(text.split())


def numbers(text: str) -> list[Number]:
    """Find the numbers of a text."""
    found = []
    for match in NUMBER.finditer(text):
        whole, fraction, per_cent, unit = match.groups()
        digits, before = whole.replace(",", ""), text[: match.start()]
        if not fraction and not per_cent and len(digits) == 1:
            continue
        value, half = float((digits or "0") + (fraction or "")), 0.5 * 10.0 ** -len((fraction or ".")[1:])
        if not fraction and value >= 1000:
            half = 0.5 * 10.0 ** (len(digits) - len(digits.rstrip("0")))  # '32,000'
        signed = -value if before.endswith("−") else value
        scales = [1.0, *([0.01] if per_cent else []), *([UNITS[unit]] if unit else [])]
        readings = tuple((signed * scale, half * scale) for scale in scales)
        found.append(Number(match[0].strip(), match.start(), match.end(), readings))
    return found


def neighbours(text: str, number: Number) -> Iterator[Number]:
    """Yield what stands there if the last digit is the next one, or the one before."""
    at = number.start + max(i for i, c in enumerate(number.text) if c.isdigit())
    for step in (1, 9):
        other = text[:at] + str((int(text[at]) + step) % 10) + text[at + 1 :]
        yield from (n for n in numbers(other) if n.start == number.start)


@cache
def printed(text: str) -> list[float]:
    """Return the numbers of an output or of code, in order."""
    return [
        float("-" * bool(sign) + re.sub("[,_]", "", n) + power) for sign, n, power in PRINTED.findall(text)
    ]


def outputs(cell: dict[str, Any]) -> str:
    """Return what a code cell prints, in words."""
    data = [{"text/plain": output.get("text", "")} | output.get("data", {}) for output in cell["outputs"]]
    return "\n".join("".join(d.get("text/plain", "")) for d in data)


# What numbers.toml gives in each section of a page.
Given = dict[str, dict[str, str]]
ENTRY = re.compile(r"(.*?)(?: \((\d+) times\))?")

KNOWN = vars(math) | vars(xent.sequences) | vars(xent.denominators) | vars(records) | vars(quantities)
KNOWN |= {f.__name__: f for f in (abs, len, max, mean, min, range, sorted, sum, zip)} | {"pictures": pictures}


@dataclass
class Section:
    """What the numbers of a section are held against."""

    page: list[str] = field(default_factory=list)  # what the cells of the page show
    shown: list[str] = field(default_factory=list)  # those of the section
    literals: list[float] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)  # what gives a number, by the number in numbers.toml
    texts: list[tuple[int, str]] = field(default_factory=list)  # with their cells

    def has(self, number: Number) -> bool:
        return any(number.fits(x) for text in self.shown for x in printed(text)) or self.is_literal(number)

    def is_literal(self, number: Number) -> bool:
        return any(abs(x - value) <= 1e-9 * abs(x) for x in self.literals for value, _ in number.readings)

    def has_pair(self, a: Number, b: Number, word: str) -> bool:
        """Tell whether both are printed in this order, around ± side by side."""
        streams = [printed(text) for text in self.shown]
        if word == "±":
            return any(a.fits(x) and b.fits(y) for stream in streams for x, y in pairwise(stream))
        behind = [list(dropwhile(lambda x: not a.fits(x), stream))[1:] for stream in streams]
        return any(b.fits(y) for stream in behind for y in stream)

    def after(self, *words: Any) -> float | list[float]:
        """Return what is printed after these words, one behind another: a number, or those counted from 0."""
        places = [word for word in words if isinstance(word, int)]
        text = " ".join(" ".join([*self.shown, *self.page]).split())
        for word in words[: len(words) - len(places)]:
            text = text[text.index(word) + len(word) :]
        there = printed(text)
        return [there[place] for place in places] if len(places) > 1 else there[sum(places)]

    def ties(self) -> tuple[list[dict[int, str]], list[str]]:
        """Return, for each text, which of its numbers (by its turn) an entry has; and what is wrong with entries."""
        streams = [numbers(text) for _, text in self.texts]
        tied: list[dict[int, str]] = [{} for _ in streams]
        said = []
        for key in sorted(self.given, key=lambda key: -len(numbers(key))):
            name, times = ENTRY.fullmatch(key).groups()  # type: ignore[union-attr]
            wanted, found = [n.written for n in numbers(name)], 0
            for stream, mine in zip(streams, tied, strict=True):
                for at in range(len(stream) - len(wanted) + 1):
                    turns = range(at, at + len(wanted))
                    if [stream[i].written for i in turns] == wanted and not mine.keys() & {*turns}:
                        mine |= dict.fromkeys(turns, f"{key} at {at}")
                        found += 1
            if not wanted or found != int(times or 1):
                said.append(f"{key!r} stands there {found} times" if wanted else f"{key!r} is no number")
        return tied, said

    def fault(self, key: str, source: str) -> str:
        """Tell what is wrong with what is given, if anything; `source` is the page's."""
        wanted, given = numbers(ENTRY.fullmatch(key)[1]), self.given[key]  # type: ignore[index]
        if given.startswith("from "):
            name, _, argument = given[5:].partition(" ")
            if not (ROOT / name).is_file():
                named = given == "from supposition" or given[5:] in source
                return "" if named else "which the page does not name"
            # A file of ours, which holds the number or, with an argument, prints it.
            text = (ROOT / name).read_text(encoding="utf-8")
            there = argument in text if argument else {n.readings[0][0] for n in wanted} <= {*printed(text)}
            return "" if there else f"which {name} does not hold"
        try:
            value = eval(" ".join(given.split()), {"__builtins__": {}, **KNOWN, "shown": self.after})
        except Exception as error:
            return f"which ends in {error!r}"
        values = value if isinstance(value, tuple | list) else [value]
        right = len(values) == len(wanted) and all(n.fits(x) for n, x in zip(wanted, values, strict=True))
        return "" if right else f"which is {', '.join(f'{x:.6g}' for x in values)}"


def read(cells: list[dict[str, Any]], given: Given) -> dict[str, Section]:
    """Read the sections of a page; the opening holds what all cells show, as do the other summaries."""
    page = Section(given=given.get(OPENING, {}))
    page.shown = page.page
    heading, sections = OPENING, {OPENING: page}
    for number, cell in enumerate(cells, 1):
        source, section = "".join(cell["source"]), sections[heading]
        if cell["cell_type"] == "code":
            for one in (page, section)[: 1 + (section is not page)]:
                one.shown.append(outputs(cell))
                one.literals += printed(source)
            words = cell["metadata"].get("mystnb", {})
            both = words.get("figure", {}).get("caption", ""), words.get("image", {}).get("alt", "")
            section.texts += [(number, prose(text)) for text in both]
            continue
        for part in re.split(r"(?m)^(?=## )", source):
            heading = part.splitlines()[0][3:].strip() if part.startswith("## ") else heading
            if heading not in sections:
                sections[heading] = Section(page.page, given=given.get(heading, {}))
                if heading in SUMMARIES:
                    sections[heading].shown, sections[heading].literals = page.page, page.literals
            section = sections[heading]
            section.texts.append((number, prose(part)))
            for _, kind, inside in BLOCK.findall(part):
                if include := re.match(r"\{include\} \.\./(\S+)", kind):
                    section.shown.append((ROOT / include[1]).read_text(encoding="utf-8"))
                elif not PROSE_BLOCK.match(kind.strip()):
                    section.literals += printed(inside)
    return sections


def faults(section: Section, text: str, tied: dict[int, str]) -> Iterator[str]:
    """Name the numbers of a text that nothing prints, and those that could be others unnoticed."""
    found = [(n, tied.get(turn)) for turn, n in enumerate(numbers(text))]
    beside = set()
    for (a, tie), (b, other_tie) in pairwise(found):
        between = BETWEEN.fullmatch(text[a.end : b.start])
        if between is None or (tie and tie == other_tie) or (section.is_literal(a) and section.is_literal(b)):
            continue
        word, written = between[1], text[a.start : b.end].strip()
        if word == "±":
            beside |= {a, b}
            near = [*((n, b) for n in neighbours(text, a)), *((a, n) for n in neighbours(text, b))]
            if not section.has_pair(a, b, word):
                yield f"{written} is not printed side by side"
            elif any(section.has_pair(*pair, word) for pair in near):
                yield f"{written} could have another last digit, which is printed too"
        elif "to" in word and not text[: a.start].endswith("from "):
            if a.readings[0][0] > b.readings[0][0]:
                yield f"{written} falls"
        elif not section.has_pair(a, b, word) or section.has_pair(b, a, word):
            yield f"{written}, or turned round?"
    for number, tie in found:
        if tie or number in beside:
            continue
        if not section.has(number):
            yield f"{number.text} is printed by no cell of the section"
        elif not section.is_literal(number):
            others = [other.text for other in neighbours(text, number) if section.has(other)]
            yield from (f"{number.text} could be {other}, which is printed too" for other in others[:1])


def entries(page: str) -> Given:
    """Return what is given on a page, by section."""
    given: dict[str, Given] = tomllib.loads((ROOT / GIVEN).read_text(encoding="utf-8"))
    return given.get(page, {})


def problems(cells: list[dict[str, Any]], given: Given) -> list[str]:
    """Name the faults of a page by cell, and what is given wrongly or for nothing."""
    said, source = [], "".join("".join(cell["source"]) for cell in cells)
    sections = read(cells, given)
    for heading, section in sections.items():
        tied, untied = section.ties()
        for (cell, text), mine in zip(section.texts, tied, strict=True):
            said += [
                f"cell {cell}: {fault}; print it, or give it in {GIVEN} under {heading!r}"
                for fault in faults(section, text, mine)
            ]
        said += [f"{GIVEN}, {heading!r}: {fault}" for fault in untied]
        for key in section.given:
            if fault := section.fault(key, source):
                said.append(f"{GIVEN}, {heading!r}: {key} = {section.given[key]}, {fault}")
    return said + [f"{GIVEN}: the page has no section {name!r}" for name in given.keys() - sections.keys()]


SHOWN = "loss 2.3026, share 0.0398, rows 31,874, 16777216 bytes\ngain -0.512 ± 0.214\n7.1 7.2\n"
CODE = {"cell_type": "code", "source": "draws = 400", "outputs": [{"text": SHOWN}], "metadata": {}}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_number_of_the_prose_is_printed_or_given(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    page: list[dict[str, Any]] = [{"cell_type": "markdown", "source": text}]
    said = problems(json.loads(text)["cells"] if path.suffix == ".ipynb" else page, entries(path.stem))
    assert not said, "\n".join(f"{path.name}, {line}" for line in said)
    assert path.suffix == ".ipynb" or "<!--" not in text, f"{path.name}: a comment, which readers do not see"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_number_of_the_errata_stands_in_what_is_tried_of_its_row(row: marks.Row) -> None:
    code = "\n".join(mark.source for mark in MARKS if (mark.kind, mark.of) == ("erratum", row.id))
    cells: list[dict[str, Any]] = [{**CODE, "source": code, "outputs": []}]
    cells += [{"cell_type": "markdown", "source": f"{row.stands}\n\n{row.truth}"}]
    said = problems(cells, {})
    assert not said, "\n".join(said)


def test_numbers_are_given_for_pages_that_there_are() -> None:
    pages = tomllib.loads((ROOT / GIVEN).read_text(encoding="utf-8"))
    assert pages.keys() <= {path.stem for path in PAGES}


@pytest.mark.parametrize(
    ("text", "given", "complaint"),
    [
        ("The loss is 2.30, a share of 4 per cent, after 400 draws; about 32,000 rows, or 16 MiB.", {}, ""),
        ("So $x \\approx 2.31$.", {}, "2.31 is printed by no cell of the section; print it, or give it in"),
        ("After 401 draws it stays. In 2019, with Python 3.12 and `0.7` (chapter 12).", {}, "401 is"),
        ("It gained −0.512 ± 0.214 with 2,000-bit keys of 8 bits.", {}, ""),
        ("The loss is −2.30.", {}, "2.30 is printed by no cell"),
        ("It is 0.214 ± 0.512.", {}, "0.214 ± 0.512 is not printed side by side"),
        ("It falls from 2.3026 to 0.0398.", {}, ""),
        ("It falls from 0.0398 to 2.3026.", {}, "0.0398 to 2.3026, or turned round"),
        ("It is 7.1 by now.", {}, "7.1 could be 7.2, which is printed too"),
        ("It is 7.2 by now.", {"7.2": "shown('0.214')"}, "7.2 = shown('0.214'), which is 7.1"),
        ("They gain 0.51 ± 0.21.", {"0.51 ± 0.21": "-shown('gain'), shown('gain', 1)"}, ""),
        ("Given: 0.89.", {"0.89": "log(2)"}, "0.89 = log(2), which is 0.693147"),
        ("Given: 0.69, again 0.69.", {"0.69 (2 times)": "log(2)"}, ""),
        ("Given: 0.69, again 0.69.", {"0.69": "log(2)"}, "'0.69' stands there 2 times"),
        ("Given: 0.88.", {"0.88": ""}, "0.88 = , which ends in SyntaxError"),
        ("Given: 1.16.", {"1.16": "from their manual"}, "which the page does not name"),
        ("Their manual says 1.16.", {"1.16": "from Their manual"}, ""),
        ("Given: 701.", {"701": "from experiments/distillation/digits.json"}, "does not hold"),
        ("Given.", {"0.69": "log(2)"}, "'0.69' stands there 0 times"),
        ("Given.", {"mean": "log(2)"}, "'mean' is no number"),
    ],
)  # fmt: skip
def test_a_number_that_nothing_prints_is_named(text: str, given: dict[str, str], complaint: str) -> None:
    said = problems([{"cell_type": "markdown", "source": f"## One\n\n{text}"}, CODE], {"One": given})
    assert complaint in said[0] if complaint else not said
