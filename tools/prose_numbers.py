"""Find numbers in the prose of the chapters that nothing printed nearby supports.

A number is a decimal, a percentage, or an integer of two digits or more, in the text of a Markdown cell, the
caption or the alternative text of a figure, or what a formula comes to. It is supported by a number that a
code cell of the same section prints and that rounds to it, or that stands in the cell's source; a percentage
also by the fraction. The sections that announce and sum up are held against the whole chapter. What stands
in other formulas, code, links, roles, headings and options of directives, and what an exercise gives, is not
prose; nor are years, versions, numbers of bits and the ids of errata.

    python tools/prose_numbers.py                       # every chapter
    python tools/prose_numbers.py chapters/03_*.ipynb   # only these

What no output supports stands in tests/book/prose_numbers.json, with words of its sentence, with the reason,
and where possible with evidence: a formula of which it is the `value` (of the functions of math and what
FORMULA names), the `section` that prints it, or a `file` that holds a `text`.
"""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import errata
from xent.sequences import GeometricSource, eos_optimum

ALLOWED = "tests/book/prose_numbers.json"

_FENCE = re.compile(r"^(`{3,}|~{3,}|:{3,})(.*?)\n(.*?)^\1[`~:]*[ \t]*$", re.DOTALL | re.MULTILINE)
# Directives whose body is prose; the body of any other (exercises, mermaid, tables of code) is not.
_PROSE_DIRECTIVES = re.compile(
    r"\{(note|tip|warning|important|admonition|caution|hint|margin|dropdown|moving-figure)\}"
)
_NOT_PROSE = [
    re.compile(r"\$\$.*?\$\$(\s*\([\w-]+\))?", re.DOTALL),
    re.compile(r"\{[\w:-]+\}`[^`]*`"),
    re.compile(r"`+[^`]+`+"),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"<[^>\s][^>]*>"),
    re.compile(r"\[[^]]*\d\]\(https://github\.com/[^)\s]*/(?:issues|pull)/\d+[^)\s]*\)"),
    re.compile(r"(?<=\])\([^)\s]*\)"),
    re.compile(r"https?://\S+"),
    re.compile(r"^\([\w-]+\)=\s*$", re.MULTILINE),
    re.compile(r"^:[\w-]+:.*$", re.MULTILINE),
    re.compile(r"^#+ .*$", re.MULTILINE),
    re.compile(r"^\d+\. ", re.MULTILINE),
    # Names that end in a number.
    re.compile(
        r"\b(Python|PyTorch|NumPy|SciPy|TensorFlow|Keras|JAX|scikit-learn|transformers|Lightning|[Vv]ersions?|[Rr]eleases?|[Cc]hapters?|"
        r"[Ss]ections?|[Rr]ows?|[Ee]rrat(?:um|a)|[Ii]ssue|[Ll]ecture|[Ee]quations?|[Ff]igures?) "
        r"#?\d[\d.]*\w?((,| and|, and| to| or) \d[\d.]*)*"
    ),
    re.compile(r"\b(\d+(, | or | and ))*\d+[- ]bits?\b"),
    # A year, where it reads as one: after a month, in brackets, or after a word that goes before a time.
    re.compile(
        r"(?<!\w)(?:(?:January|February|March|April|May|June|July|August|September|October|November|December|"
        r"early|mid|late|since|until)\s+(?:1[789]|20)\d\d|\((?:1[789]|20)\d\d\)|"
        r"(?:[Ii]n|of|from|by)\s+(?!2000)(?:19[5-9]|20[0-4])\d)(?![.,]?\d|\w)"
    ),
]
_MATH = re.compile(r"(?<!\\)\$([^$]+?)(?<!\\)\$")
# A formula that is nothing but a number, or that ends in what it comes to, makes a claim as prose does.
_RESULT = re.compile(r"(?:^|\\approx)\s*[-−]?(\d[\d.]*|\.\d+)\s*$")
_ROWS = re.compile(r"\(\d\.\d{1,2}(?:(?:, | and |, and )\d\.\d{1,2})*\)")
_NUMBER = re.compile(
    r"(?<![\w.,/^-])(?=\.?\d)(\d{1,3}(?:,\d{3})+|\d*)(\.\d+)?(?![\w^])(?!,\d|\.\d|/\d)"
    r"(\s*%| per cent| percent)?"
)
_HEDGE = re.compile(
    r"\b(about|around|near|nearly|almost|roughly|some|close to|order of|than|under|over)\s+(an?\s+)?$"
)
_PRINTED = re.compile(r"(?<![\w.])[-+]?(\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# The sections that speak of the whole chapter; the opening has no heading of the second level.
SUMMARIES = ("", "What to remember", "Sources and corrections")
_SCALE = {"thousand": 1e3, "million": 1e6, "billion": 1e9}
_BYTES = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}

ROOT = Path(__file__).resolve().parent.parent
# What a formula may use beside the functions of math: `result` reads what an experiment stored.
FORMULA: dict[str, Any] = {
    **{f.__name__: f for f in (max, min, range, sum)},
    "eos_optimum": eos_optimum,
    "GeometricSource": GeometricSource,
    "result": lambda name: json.loads((ROOT / "experiments" / name).read_text(encoding="utf-8")),
}
ROWS = {row.id for row in errata.read(ROOT)[1]}


@dataclass(frozen=True)
class Number:
    """A number in the prose: as it is written, what it means, and how exactly it means it."""

    text: str
    values: tuple[float, ...]  # several readings: per cent or fraction, megabytes or bytes
    half: tuple[float, ...]  # half a unit of the last digit written, in each reading
    sentence: str


def prose(markdown: str) -> str:
    """The text of a Markdown cell without what is no prose; of the same length, so that places agree."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    def fence(match: re.Match[str]) -> str:
        if not _PROSE_DIRECTIVES.match(match.group(2).strip()):
            return blank(match)
        head, body = len(match.group(1)) + len(match.group(2)) + 1, match.group(3)
        body = re.sub(r"(?m)^:alt:", " " * 5, body)
        return " " * (head - 1) + "\n" + body + " " * (len(match.group()) - head - len(body))

    def formula(match: re.Match[str]) -> str:
        result = _RESULT.search(match[1])
        return " " * (len(match.group()) - len(result[1]) - 1) + result[1] + " " if result else blank(match)

    text = _FENCE.sub(fence, markdown)
    text = _MATH.sub(formula, _NOT_PROSE[0].sub(blank, text))
    for pattern in _NOT_PROSE:
        text = pattern.sub(blank, text)
    return _ROWS.sub(lambda m: blank(m) if set(re.findall(r"[\d.]+", m.group())) <= ROWS else m.group(), text)


def sentence_around(text: str, start: int, end: int) -> str:
    """The sentence, or the line of a list or table, in which a number stands."""
    left = max((m.end() for m in re.finditer(r"[.?!:]\s|\n\s*[-|*]|\n\n", text[:start])), default=0)
    right = re.search(r"[.?!]\s|[.?!]$|\n\s*[-|*]|\n\n", text[end:])
    return " ".join(text[left : end + right.end() if right else len(text)].split())


def numbers(markdown: str) -> list[Number]:
    """The numbers of one Markdown cell's prose."""
    text, found = prose(markdown), []
    for match in _NUMBER.finditer(text):
        whole, fraction, per_cent = match.groups()
        if not fraction and not per_cent and len(whole) == 1:
            continue
        value = float((whole.replace(",", "") or "0") + (fraction or ""))
        half = 0.5 * 10.0 ** -(len(fraction) - 1 if fraction else 0)
        digits = whole.replace(",", "").rstrip("0")
        if not fraction and value and (value >= 1000 or _HEDGE.search(text[: match.start()])):
            # 'about 40', '32,000': rounded to the last digit that is not zero.
            half = 0.5 * 10.0 ** (len(whole.replace(",", "")) - len(digits))
        readings = [(value, half)]
        if per_cent:
            readings.append((value / 100, half / 100))
        unit = re.match(r"\s+(\w+)", text[match.end() :])
        if unit and (scale := _SCALE.get(unit[1]) or _BYTES.get(unit[1])):
            readings.append((value * scale, half * scale))
        found.append(
            Number(
                match.group().strip(),
                tuple(v for v, _ in readings),
                tuple(h for _, h in readings),
                sentence_around(markdown, match.start(), match.end()),
            )
        )
    return found


def printed(text: str) -> list[float]:
    """The numbers of an output or of a source, without their signs."""
    found = []
    for match in _PRINTED.finditer(text):
        try:
            found.append(abs(float(match.group().replace(",", "").replace("_", ""))))
        except ValueError:
            # A comma that ends a list entry, a stray separator.
            found += [abs(float(part)) for part in re.findall(r"\d+\.?\d*", match.group())]
    return found


def output_text(cell: dict[str, Any]) -> str:
    """What a code cell's outputs say in words; pictures say nothing."""
    parts = []
    for output in cell.get("outputs", []):
        parts.append("".join(output.get("text", [])))
        for kind, data in output.get("data", {}).items():
            if kind == "text/plain":
                parts.append("".join(data))
            elif kind == "text/html":
                parts.append(re.sub(r"<[^>]*>", " ", "".join(data)))
    return "\n".join(parts)


@dataclass
class Support:
    """What a section's code cells print, which prose may round, and name, which it has to repeat."""

    printed: list[float] = field(default_factory=list)
    named: set[float] = field(default_factory=set)


def supported(number: Number, near: list[Support]) -> bool:
    """Whether a number nearby is this one, or is printed and rounds to it, in one of its readings."""
    return any(
        value in part.named or any(abs(x - value) <= half * (1 + 1e-9) for x in part.printed)
        for value, half in zip(number.values, number.half, strict=True)
        for part in near
    )


@dataclass
class Section:
    """A section's heading, the numbers of its prose, and what supports them."""

    heading: str = ""
    numbers: list[Number] = field(default_factory=list)
    support: Support = field(default_factory=Support)


def sections(notebook: dict[str, Any]) -> list[Section]:
    """The sections of a chapter, the opening first."""
    found = [Section()]
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            found[-1].support.printed += printed(output_text(cell))
            found[-1].support.named.update(printed(source))
            words = cell.get("metadata", {}).get("mystnb", {})
            found[-1].numbers += numbers(words.get("figure", {}).get("caption", ""))
            found[-1].numbers += numbers(words.get("image", {}).get("alt", ""))
            continue
        # A section begins at a heading of the second level, which may stand inside a cell.
        for part in re.split(r"(?m)^(?=## )", source):
            if part.startswith("## "):
                found.append(Section(part.splitlines()[0].removeprefix("## ").strip()))
            found[-1].numbers += numbers(part)
    return found


def unsupported(notebook: dict[str, Any]) -> list[Number]:
    """The numbers of a chapter's prose that nothing nearby supports."""
    parts = sections(notebook)
    everything = [part.support for part in parts]
    return [
        number
        for part in parts
        for number in part.numbers
        if not supported(number, [part.support] if part.heading not in SUMMARIES else everything)
    ]


def read_allowed(root: Path) -> dict[str, list[dict[str, str]]]:
    """Chapter -> its exceptions: the number, words of its sentence, the reason."""
    allowed: dict[str, list[dict[str, str]]] = json.loads((root / ALLOWED).read_text(encoding="utf-8"))
    return allowed


def excuses(row: dict[str, str], number: Number) -> bool:
    """Whether an exception is about this number."""
    return row["number"] == number.text and row["near"] in number.sentence


def evidence(row: dict[str, str], number: Number, notebook: dict[str, Any]) -> bool:
    """Whether what an exception refers to says what the prose says."""
    if "value" in row:
        value = float(eval(row["value"], {"__builtins__": {}, **vars(math), **FORMULA}))
        return supported(number, [Support(printed=[abs(value)])])
    if "section" in row:
        return supported(number, [s.support for s in sections(notebook) if s.heading == row["section"]])
    return "file" not in row or row["text"] in (ROOT / row["file"]).read_text(encoding="utf-8")


def problems(path: Path, allowed: list[dict[str, str]]) -> list[str]:
    """A chapter's unsupported numbers that no exception excuses, and exceptions that excuse nothing."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    found, lines = unsupported(notebook), []
    for number in found:
        rows = [row for row in allowed if excuses(row, number)]
        if not rows:
            lines.append(f"{path.name}: nothing printed supports {number.text} in: {number.sentence}")
        elif not all(evidence(row, number, notebook) for row in rows):
            lines.append(f"{path.name}: the evidence of the exception for {number.text} is another number")
    for row in allowed:
        if not any(excuses(row, number) for number in found):
            lines.append(
                f"{path.name}: the exception for {row['number']} near {row['near']!r} excuses nothing"
            )
    return lines


def main(arguments: list[str]) -> int:
    """The command line."""
    allowed = read_allowed(ROOT)
    paths = [Path(name) for name in arguments] or sorted((ROOT / "chapters").glob("*.ipynb"))
    lines = [line for path in paths for line in problems(path, allowed.get(path.stem, []))]
    for line in lines:
        print(f"prose: {line}", file=sys.stderr)
    if not lines:
        print(f"prose: {len(paths)} chapters, every number supported or excused")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
