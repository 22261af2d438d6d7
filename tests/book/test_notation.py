"""The list of symbols: what the chapters write is on it, and no chapter gives a letter two meanings."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

BOOK = Path(__file__).resolve().parents[2] / "chapters"
PAGES = {f"{int(path.name[:2])}": path for path in sorted(BOOK.glob("[0-9]*.ipynb"))} | {
    "note": BOOK / "note_denominators.md",
    "rewards": BOOK / "rewards.ipynb",
}
# Words and names, the layout, and what a font does to a letter: the d of an integral, the T of a transpose.
NOISE = re.compile(
    r"\\(?:text|textrm|texttt|operatorname|math(?:rm|sf|tt|bb))\*?\{[^}]*\}"
    r"|\\(?:begin|end)\{[^}]*\}(?:\{[^}]*\})?|\\math(?:rm|sf|tt|bb) [a-zA-Z]|\[\dex\]|\d+(?:ex|em)\b"
)
GREEK = (
    "alpha|beta|[gG]amma|[dD]elta|(?:var)?epsilon|zeta|eta|[tT]heta|kappa|[lL]ambda|mu|nu|xi|[pP]i|rho|[sS]igma|tau|"
    "(?:var)?phi|Phi|chi|[pP]si|[oO]mega"
)
COMMAND = rf"(?:mathcal|ell|{GREEK})(?![a-zA-Z])"
SYMBOL = re.compile(rf"\\mathcal\s*\{{?[A-Z]\}}?|\\{COMMAND}|(?<![\\a-zA-Z])[a-zA-Z]")
STOPWORDS = {"another", "number", "with", "that", "from", "other", "their", "what"}


def symbols(tex: str) -> list[str]:
    """Return the letters of a formula, each as the table writes it."""
    plain = re.sub(rf"\\(?!{COMMAND})[a-zA-Z]+", " ", NOISE.sub(" ", tex))
    return [re.sub(r"[\s{}]", "", name).replace("mathcal", "mathcal ") for name in SYMBOL.findall(plain)]


def cells(path: Path, kind: str = "markdown") -> str:
    """Return a page's cells of one kind; one that is no notebook is a single cell."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        found = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == kind]
        text = "\n\n".join("".join(cell["source"]) for cell in found)
    return text


def prose(path: Path) -> str:
    """Return a page's text and formulas, without code."""
    text = cells(path)
    return re.sub(r"```\{index\}.*?```|(?<!`)`[^`\n]+`(?!`)", " ", text, flags=re.DOTALL)


FORMULA = re.compile(r"\$\$(.*?)\$\$|\$([^$]+?)\$", re.DOTALL)


@cache
def uses(page: str) -> dict[str, list[str]]:
    """Return each symbol of a page, with the text around each formula that holds it."""
    found, text = defaultdict(list), prose(PAGES[page])
    for formula in FORMULA.finditer(text):
        around = text[max(0, formula.start() - 250) : formula.end() + 250]
        for name in symbols(formula[1] or formula[2]):
            found[name].append(around)
    return found


@cache
def listed() -> tuple[set[str], set[str], list[tuple[list[str], str, list[str]]]]:
    """Return what the list gives throughout, what serves a paragraph, and the rows by chapter."""
    text = (BOOK / "notation.md").read_text(encoding="utf-8")
    throughout, _, by_chapter = text.partition("### By chapter")
    first = [line.split("|")[1:-1] for line in throughout.splitlines() if line.startswith("| $")]
    common = {
        name for cells in first for tex in re.findall(r"\$([^$]+)\$", cells[0]) for name in symbols(tex)
    }
    (letters,) = re.findall(r"^The letters (.*) serve for the moment", throughout, re.MULTILINE)
    local = set(re.findall(r"\$(\w)\$", letters)) | set("ijl")
    cells = [
        line.split("|")[1:-1]
        for line in by_chapter.partition("## Glossary")[0].splitlines()
        if line[:3] == "| $"
    ]
    rows = [
        (symbols(" , ".join(re.findall(r"\$([^$]+)\$", symbol))), meaning.strip(), pages.strip().split(", "))
        for symbol, meaning, pages in cells
    ]
    return common, local, rows


def own(page: str) -> Counter[str]:
    """Count the meanings that the second table gives to each symbol of a page."""
    return Counter(name for names, _, pages in listed()[2] if page in pages for name in names)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_uses_the_symbols_of_the_list_each_in_one_meaning(page: str) -> None:
    common, local, _ = listed()
    assert sorted(set(uses(page)) - common - local - set(own(page))) == [], "these are not in notation.md"
    assert [name for name, meanings in own(page).items() if meanings > 1] == []
    code = [*re.findall("`[^`]+`", cells(PAGES[page])), cells(PAGES[page], "code")]
    letters = re.findall(r"\b[a-zA-Z]\b", " ".join(code))
    assert sorted(set(own(page)) - set(uses(page)) - set(letters)) == [], "rows name these"


def test_a_symbol_stands_beside_a_word_of_its_meaning() -> None:
    """A symbol that a chapter uses otherwise than its row says stands beside none of the row's words."""
    wrong = []
    for names, meaning, pages in listed()[2]:
        stems = {w[:5].lower() for w in re.findall(r"[A-Za-z]{4,}", meaning) if w.lower() not in STOPWORDS}
        for page in pages:
            for name in set(names) & set(uses(page)):
                around = " ".join(uses(page)[name]).lower()
                if not any(stem in around for stem in stems):
                    wrong.append(f"{name} in {page}: {meaning}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_the_layer_the_divergence_the_expectation_and_the_loss_are_written_one_way(page: str) -> None:
    text = prose(PAGES[page])
    assert re.findall(r"W\^(?:\\top|\{?\\mathsf\{?\s*T\}*) ?x", text) == [], "it is z = W x + b"
    assert re.findall(r"D_\{?(?:\\mathrm\{)?KL|\\operatorname\{KL\}", text) == []
    assert re.findall(r"\\mathbb\s*\{?(?:E|P|Var|Cov)\b", text) == [], "an expectation is \\mathrm E"
    assert re.findall(r"\\(?:tilde|hat|bar)\s*\{?[JL]\b", text) == [], "a loss is \\ell or \\mathcal L"
