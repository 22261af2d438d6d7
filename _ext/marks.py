"""What the chapters state and what the tests say that they check: equations, claims, errata.

    @pytest.mark.equation("eq-bce")
    @pytest.mark.claim("01", "The gradient of the loss is prediction")
    @pytest.mark.erratum("3.3", "slip")
    def test_the_gradient() -> None:
        '''What is tried: 50 random batches, against central differences.'''

Chapters are read as text and tests, anywhere under tests/, as syntax trees; nothing is executed. What `problems`
returns fails pytest and is a warning, hence a failure, of the build.

An equation is read from the page if tests/equations/test_read.py has a row for it; any other is transcribed, by a test
that quotes it in its docstring. An erratum is a row of chapters/errata.yml, tried in tests/equations/test_errata.py by
`yield source("3.3", ...)`, which gives its verdict; a mark on another test repeats that.

A claim is a row, `@claim("01", "The gradient of the loss", on=..., but_not=...)` of tests/adversary.py, or a test with
the mark above that says `with refuted(...)` itself. Its words stand in the chapter once, up to white space and
emphasis. The sentence around them is what the card shows and where the ✓ stands: from the last full stop, colon or
semicolon, or the beginning of a paragraph, an item, a cell of a table or a parenthesis, to the next. Words that end
with a punctuation mark end the claim there, and "first words ... last words" is what stands between, ends included.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from markdown_it import MarkdownIt
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.colon_fence import colon_fence_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

# Its table ROWS has an entry for each equation that a program reads from the page.
READ = "tests/equations/test_read.py"
ERRATA = "chapters/errata.yml"
# It tries what each row of the errata says.
TRIED = "tests/equations/test_errata.py"
VERDICTS = {
    "wrong": "Wrong",
    "slip": "A slip",
    "conditional": "Needs a condition",
    "outdated": "Outdated",
    "holds": "Holds",
}
# How to write a mark, and a claim as a row; a file of a chapter's claims need not name the chapter.
USAGE = {
    "equation": 'pytest.mark.equation("eq-slug")',
    "claim": 'pytest.mark.claim("01", "the first words of the sentence")',
    "erratum": 'pytest.mark.erratum("3.3", "slip"), with the verdict of its row',
}
AS_ROW = 'claim("01", "the first words of the sentence", on=inputs, but_not={"what it must reject": input})'
CHAPTER = r"(\d\d|line|rewards)"
CHAPTER_OF = re.compile(f"tests/claims/test_{CHAPTER}")

LABEL = re.compile(r"eq-[a-z0-9]+(-[a-z0-9]+)*")
DISPLAYED = re.compile(r"\$\$(?P<tex>.+?)\$\$(?:[ \t]*\((?P<label>[^)\s]*)\))?", re.DOTALL)
_MARKDOWN = (
    MarkdownIt().use(dollarmath_plugin, double_inline=True).use(colon_fence_plugin).use(amsmath_plugin)
)
# What ends no sentence: mathematics, code, where a link leads.
_OPAQUE = re.compile(
    r"(?<!\\)(\$\$?)(?!\s).*?(?<!\\)\1|(?<!`)(``?)(?!`).+?(?<!`)\2(?!`)|(?<=\])\([^)]*\)", re.DOTALL
)
# Between blocks: an empty line, or the beginning of an item, a row, a heading, a directive, an equation.
_BLOCK = re.compile(r"\n\s*\n|\n(?=[ \t]*(?:[-+*>]\s|\d+\.\s|\||#|:::|```|\$\$))")
_PREFIX = re.compile(r"\s*(?:(?:[-+*>]|\d+\.|#+)\s+)?")
_SIGN = re.compile(
    r"(?P<stop>(?:[:;!?]|(?<!Dr)(?<!\bp)\.(?!\s+[a-z]))[*_)\]\"”’]*(?=\s|$))"
    r"|(?P<open>\()|(?P<close>\))|(?P<cell>\|)"
)
_CLOSED = re.compile(r"(?<=[.,:;!?])[*_)\]\"”’]*")
# Directives whose bodies are no Markdown.
_VERBATIM = {"code", "code-block", "code-cell", "sourcecode", "literalinclude", "raw", "mermaid"}


class Equation(NamedTuple):
    """A labelled equation, where it stands and what it says."""

    label: str
    chapter: str
    where: str  # such as "chapters/01_binary.ipynb, cell 3"
    tex: str


class Row(NamedTuple):
    """A row of the errata: a statement of a source, with the chapter and the heading that state it right."""

    id: str
    verdict: str
    place: str
    stands: str
    truth: str
    section: tuple[str, str]
    says: str = ""  # the words of that section that hold the correction

    @property
    def anchor(self) -> str:
        """The id of its card on the page."""
        return "erratum-" + self.id.replace(".", "-")


class Mark(NamedTuple):
    """One mark on one test function."""

    kind: str  # of USAGE
    of: str  # the label of an equation, the number of a claim's chapter, the id of a row
    how: str  # words of a claim's sentence, or an erratum's verdict, if it has one
    path: str  # of the test's file, from the root
    function: str
    line: int
    doc: str
    source: str
    rejects: tuple[str, ...] = ()  # the names of what it refutes

    @property
    def name(self) -> str:
        return f"{Path(self.path).name}::{self.function}"

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}: {self.function}"

    @property
    def quoted(self) -> str | None:
        """The statement, as the docstring quotes it."""
        return {m["label"]: m["tex"] for m in DISPLAYED.finditer(self.doc)}.get(self.of)

    @property
    def anchor(self) -> str:
        """The id of a claim's card: its first words, for a test may defend several."""
        return "-".join(["claim", self.of, *re.findall("[a-z0-9]+", self.how.lower())[:10]])

    def places(self, cell: str) -> list[tuple[int, int]]:
        """Return where a claim's sentence begins and ends in a cell, wherever its words stand."""
        first, _, last = self.how.partition(" ... ")
        found = [(words.start(), words.end()) for words in _words(first).finditer(cell)]
        if last:
            ends = [(start, _words(last).search(cell, end)) for start, end in found]
            return [(start, words.end()) for start, words in ends if words]
        return [sentence(cell, start, end) for start, end in found]


@cache
def _words(piece: str) -> re.Pattern[str]:
    """What finds a claim's words: whole words, any white space between them, emphasis around them."""
    words = (r"\**".join(map(re.escape, word)) for word in piece.replace("*", "").split())
    return re.compile(r"(?<!\w)" + r"[*\s]*\s[*\s]*".join(words) + r"\**+(?![-'’]?\w)")


def _plain(text: str) -> str:
    """What is left of a text without mathematics, code and where its links lead, as long as it is."""
    return _OPAQUE.sub(lambda m: "X" * len(m[0]), text)


def as_sentence(text: str) -> str:
    """Return a part of a cell without its emphasis, if that begins before the part or goes on behind it."""
    plain = _plain(text)
    pairs = zip(text, plain, strict=True)
    return "".join(c for c, p in pairs if p != "*") if len(re.findall(r"\*+", plain)) % 2 else text


def sentence(cell: str, start: int, end: int) -> tuple[int, int]:
    """Return where the sentence around some words of a cell begins and ends."""
    text = _plain(cell)
    edges = [0, *(edge for gap in _BLOCK.finditer(text) for edge in gap.span()), len(text)]
    first, last = max(e for e in edges if e <= start), min(e for e in edges if e >= end)
    table = text[first:].lstrip().startswith("|")
    begin, depth = first + len(_PREFIX.match(text[first:])[0]), 0  # type: ignore[index]
    for sign in reversed(list(_SIGN.finditer(text, first, start))):
        if depth == 0 and (sign["stop"] or sign["open"] or (sign["cell"] and table)):
            begin = sign.end()
            break
        depth += sign[0].count(")") - bool(sign["open"])
    begin += len(text[begin:]) - len(text[begin:].lstrip())
    # Words that end with a stop end the sentence, with what closes behind them.
    if closed := _CLOSED.match(text, len(text[:end].rstrip('*_)]"”’'))):
        begin -= ")" in closed[0] and text[begin - 1 : begin] == "("
        opened = text.count("(", begin, closed.end()) < text.count(")", begin, closed.end())
        return begin, closed.start() if opened else closed.end()
    depth = max(0, text.count("(", start, end) - text.count(")", start, end))
    for sign in _SIGN.finditer(text, end, last):
        closes = sign[0].count(")")
        if (sign["close"] and not depth) or (sign["cell"] and table):
            return begin, len(text[: sign.start()].rstrip())
        if sign["stop"] and depth <= closes:
            return begin, sign.end() if depth == closes else sign.start() + 1
        depth += bool(sign["open"]) - closes
    return begin, len(text[:last].rstrip())


# ------------------------------------------------------------------------------------- what the chapters state


def markdown_cells(root: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield (chapter, number of the cell from 1, its Markdown) in the order of reading."""
    folder = root / "chapters"
    for path in sorted([*folder.glob("*.ipynb"), *folder.glob("*.md")]):
        text = path.read_text(encoding="utf-8")
        page = {"cells": [{"cell_type": "markdown", "source": text}]}
        for number, cell in enumerate((json.loads(text) if path.suffix == ".ipynb" else page)["cells"], 1):
            if cell["cell_type"] == "markdown":
                yield path, number, "".join(cell["source"])


def displayed(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield the TeX of each displayed equation and its label, also in directives; one way to give a label is read."""
    for token in _MARKDOWN.parse(markdown):
        directive = re.match(r"\{([\w:-]+)\}", token.info) if "fence" in token.type else None
        if token.type in ("math_block", "math_block_label", "amsmath"):
            yield token.content, token.info
        elif directive and directive[1].endswith("math"):
            yield f"{directive[0]} {token.content}", ""
        elif directive and directive[1] not in _VERBATIM:
            yield from displayed(token.content)
        yield from ((one.content, "") for one in token.children or () if one.type == "math_inline_double")


def chapter_titles(root: Path) -> dict[str, str]:
    """Return the first heading of each chapter."""
    titles: dict[str, str] = {}
    for path, _, markdown in markdown_cells(root):
        if heading := re.search(r"^# (.+)$", markdown, re.MULTILINE):
            titles.setdefault(path.stem, heading[1].strip())
    return titles


def read_equations(root: Path) -> tuple[list[Equation], list[str]]:
    """Return the labelled equations of all chapters, and what is wrong with the others."""
    found: dict[str, Equation] = {}
    wrong: list[str] = []
    for path, number, markdown in markdown_cells(root):
        where = f"chapters/{path.name}, cell {number}"
        for content, label in displayed(markdown):
            tex = " ".join(content.split())[:60]
            if not LABEL.fullmatch(label):
                given = f"with the label {label!r}" if label else "without a label"
                wrong.append(f"{where}: displayed equation {given}: {tex} (write $$ ... $$ (eq-slug))")
            elif label in found:
                wrong.append(f"{where}: label {label} is taken by {found[label].where}: {tex}")
            else:
                found[label] = Equation(label, path.stem, where, content.strip())
    return list(found.values()), wrong


@cache  # every page asks what its numbers mean
def read_errata(root: Path) -> tuple[list[dict[str, Any]], list[Row]]:
    """Return the sources and the rows, in the order of the file."""
    path = root / ERRATA
    data = yaml.safe_load(path.read_text("utf-8")) if path.exists() else {"sources": [], "rows": []}
    return data["sources"], [Row(**{**row, "id": str(row["id"])}) for row in data["rows"]]


def section_text(text: str, heading: str) -> str:
    """Return what stands under a heading of a chapter, to the next heading that is no deeper."""
    found = re.search(rf"^(#+) {re.escape(heading)} *$", text, re.MULTILINE)
    if not found:
        return ""
    return re.split(rf"^#{{1,{len(found[1])}}} ", text[found.end() :], maxsplit=1, flags=re.MULTILINE)[0]


# ------------------------------------------------------------------------------------------ what the tests check


def _kind(call: ast.Call) -> str:
    """Return the kind of a mark: "claim" for `pytest.mark.claim` and `claim`; nothing for what is no mark of ours."""
    name = ast.unparse(call.func).rpartition("mark.")
    return name[2] if name[2] in USAGE and (name[1] or name == ("", "", "claim")) else ""


def _tests(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, ast.FunctionDef | None, list[ast.expr]]]:
    """Yield the tests of a file: name, statement, function, its marks. `test_it = claim(...)(check)` is one."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node, node, node.decorator_list
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name, call = ast.unparse(node.targets[0]), node.value
            yield name, node, functions.get(ast.unparse(call.args[0])) if call.args else None, [call.func]


def _names(node: ast.AST | None) -> Iterator[str]:
    """Yield the names in a table of what is rejected; what is named as the test runs is refuted all the same."""
    if isinstance(node, ast.Lambda):
        yield from _names(node.body)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield from _names(key or value)
    elif isinstance(node, ast.DictComp):
        yield from _names(node.key)
    else:
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)


def _rejected(node: ast.AST) -> Iterator[str]:
    """Yield the names of what a test refutes: of `refuted("...")` and of the entries of `but_not={"...": ...}`."""
    for call in (c for c in ast.walk(node) if isinstance(c, ast.Call)):
        refuted = call.args[:1] if ast.unparse(call.func) == "refuted" else []
        for table in [*(k.value for k in call.keywords if k.arg == "but_not"), *refuted]:
            yield from _names(table)


def read_marks(root: Path) -> tuple[list[Mark], list[str]]:
    """Return the marks of all tests, and what is wrong with those that cannot be read."""
    files = sorted((root / "tests").rglob("test_*.py"))
    read = [_marks_of(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in files]
    return [mark for marks, _ in read for mark in marks], [line for _, wrong in read for line in wrong]


@cache  # every page of the ledger asks again
def _marks_of(place: str, text: str) -> tuple[list[Mark], list[str]]:
    """Return the marks of a file, and what is wrong there."""
    found, wrong, tree, lines = list[Mark](), list[str](), ast.parse(text), text.splitlines()
    astray = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _kind(node)]
    for name, node, check, marks in _tests(tree):
        ours = [call for call in astray if call in marks and name.startswith("test")]
        if not ours:
            continue
        astray = [call for call in astray if call not in ours]
        source = lines[min(call.lineno for call in ours) - 1 : node.end_lineno]
        source += lines[check.lineno - 1 : check.end_lineno] if check and check is not node else []
        doc, rejects = (ast.get_docstring(check) or "") if check else "", tuple(_rejected(node))
        for call in ours:
            kind, row = _kind(call), isinstance(call.func, ast.Name)
            given = [str(v.value) for v in call.args if isinstance(v, ast.Constant)]
            named = given and re.fullmatch(CHAPTER, given[0])
            if kind == "claim" and (own := CHAPTER_OF.match(place)) and not named:
                given.insert(0, own[1])
            least, keywords = (
                2 - (kind == "equation"),
                [k.arg for k in call.keywords if k.arg != "on" or not row],
            )
            fits = len(given) == least or (kind == "claim" and len(given) > least)
            if not fits or keywords != ["but_not"] * row:
                wrong.append(f"{place}:{call.lineno}: {name}: write @{AS_ROW if row else USAGE[kind]}")
                continue
            at = (place, name, call.lineno, doc, "\n".join(source), rejects)
            found += [Mark(kind, given[0], how, *at) for how in given[1:] or [""]]
    if place == TRIED:
        found += [
            mark for node in tree.body if isinstance(node, ast.FunctionDef) for mark in _tried(node, lines)
        ]
    wrong += [
        f"{place}:{call.lineno}: the mark decorates a test at the top level of the file" for call in astray
    ]
    return found, wrong


def _tried(function: ast.FunctionDef, lines: list[str]) -> list[Mark]:
    """Return a mark for each row of the errata that the function yields something for, with the lines that do."""
    begin, own = function.lineno, defaultdict[str, list[str]](list)
    yields = [node for node in ast.walk(function) if isinstance(node, ast.Yield)]
    for node in sorted(yields, key=lambda node: node.lineno):
        if isinstance(node.value, ast.Call) and isinstance(row := node.value.args[0], ast.Constant):
            own[str(row.value)] += lines[begin : node.end_lineno]
        begin = node.end_lineno or begin
    at = (TRIED, function.name, function.lineno, "")
    return [Mark("erratum", row, "", *at, "\n".join(held)) for row, held in own.items()]


def read_from_the_page(root: Path) -> dict[str, tuple[int, int]]:
    """Return label -> (line, parts left out) of the equations that test_read.py evaluates as printed."""
    path = root / READ
    tree = ast.parse(path.read_text(encoding="utf-8") if path.exists() else "")
    tables = [n.value for n in tree.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "ROWS"]
    rows = [row for t in tables if isinstance(t, ast.Dict) for row in zip(t.keys, t.values, strict=True)]
    left_out = [len(value.elts) - 1 if isinstance(value, ast.Tuple) else 0 for _, value in rows]
    keys = [key for key, _ in rows if isinstance(key, ast.Constant)]
    return {str(key.value): (key.lineno, n) for key, n in zip(keys, left_out, strict=True)}


# ------------------------------------------------------------------------------------------ whether they agree


def _of_equation(mark: Mark, equations: dict[str, Equation], read: dict[str, Any]) -> Iterator[str]:
    """Say what is wrong between a test and the equation that its mark names."""
    stated = equations.get(mark.of)
    if stated is None:
        yield f"{mark.where} checks {mark.of}, a label that no chapter has"
    elif mark.of in read:
        yield f"{mark.where} transcribes {mark.of}, which {READ} reads from the page: delete it"
    elif stated.tex.split() != (mark.quoted or "").split():
        said = " ".join(stated.tex.split())
        yield f"{mark.where} does not quote {mark.of} as {stated.where} has it:\n$$\n{said}\n$$ ({mark.of})"


def _of_claim(mark: Mark, cells: list[tuple[str, str]], cards: dict[Any, Mark]) -> Iterator[str]:
    """Say what is wrong between a test and the sentence whose words its mark has; the first with its card keeps it."""
    places = [(place, cell, span) for place, cell in cells for span in mark.places(cell)]
    if len(places) != 1:
        at = ", ".join(dict.fromkeys(place for place, _, _ in places))
        says = f"says {len(places)} times, in {at}" if places else "does not say"
        ask = (
            "give more words"
            if places
            else "give words of the sentence, if the test still tries what it says"
        )
        yield f"{mark.where}: chapter {mark.of} {says}:\n    {mark.how}\n  {ask}"
        return
    [(place, cell, (begin, end))] = places
    for card, same in ((mark.anchor, "begins as"), ((place, end), "ends where")):
        if (first := cards.setdefault(card, mark)) is not mark:
            ask = 'give other words of the sentence, or of its part: "first words ... last words"'
            yield f"{mark.where}: {same} the claim at {first.where}: {ask}:\n    {cell[begin:end]}"
            return
    if not mark.rejects:
        yield f"{mark.where}: nothing is refuted; give the same assertion what must fail in it"


def _of_row(row: Row, text: str, sources: set[str], tests: list[Mark]) -> Iterator[str]:
    """Say what is wrong with a row of the errata."""
    if row.verdict not in VERDICTS or row.id.split(".")[0] not in sources:
        yield f"{ERRATA}: row {row.id} has an unknown source or verdict: {row.verdict}"
    if not any(test.path == TRIED for test in tests):
        yield f'{ERRATA}: row {row.id} has no test: {TRIED} has no `yield source("{row.id}", ...)`'
    for test in tests:
        if test.how not in ("", row.verdict):
            yield f"{ERRATA}: row {row.id} says {row.verdict!r}, and {test.where} {test.how!r}"
    words = " ".join(row.says.split())
    if words not in " ".join(section_text(text, row.section[1]).split()) or not (
        words or row.verdict == "holds"
    ):
        yield f"{ERRATA}: row {row.id}: the section {row.section} does not say {row.says!r}"


def problems(root: Path) -> list[str]:
    """Everything that is wrong between the chapters and their tests, without running anything."""
    equations, said = read_equations(root)
    marks, unreadable = read_marks(root)
    read, stated = read_from_the_page(root), {equation.label: equation for equation in equations}
    sources, rows = read_errata(root)
    tested = {mark.of for mark in marks if mark.kind == "equation"}
    texts, cells = defaultdict[str, str](str), defaultdict[str, list[tuple[str, str]]](list)
    for path, number, markdown in markdown_cells(root):
        short = path.stem.partition("_")[0]  # "04", "line"
        cells[short].append((f"{path.name}, cell {number}", markdown))
        for name in {path.stem, short}:
            texts[name] += f"{markdown}\n"

    said += unreadable
    said += [
        f"{equation.where}: equation {equation.label} has no test: {READ} does not read it, and no function in "
        f'tests is marked @pytest.mark.equation("{equation.label}")'
        for equation in equations
        if equation.label not in tested | read.keys()
    ]
    cards: dict[Any, Mark] = {}
    for mark in marks:
        if mark.kind == "equation":
            said += _of_equation(mark, stated, read)
        elif mark.kind == "claim":
            said += _of_claim(mark, cells[mark.of], cards)
        elif mark.of not in {row.id for row in rows}:
            said.append(f"{mark.where} checks {mark.of}, which is no row of {ERRATA}")
    said += [
        f"{READ}:{line}: ROWS reads {label}, a label that no chapter has"
        for label, (line, _) in read.items()
        if label not in stated
    ]
    for row in rows:
        tests = [mark for mark in marks if (mark.kind, mark.of) == ("erratum", row.id)]
        said += _of_row(row, texts[row.section[0]], {str(source["id"]) for source in sources}, tests)
    return said
