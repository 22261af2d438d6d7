"""What the stock theme leaves to do: the book's addresses and colours, and pages that load fast.

Scripts are deferred, pictures load when they come near and have their size in advance, so that nothing
jumps. What needs the address of the site or of the repository is off while `_config.yml` (or whoever
publishes the book, in the environment) names none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import tinycss2
from docutils import nodes
from sphinx.util.images import get_image_size

from xent_book.plots import PALETTE

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

# Jupyter Book would put every style sheet and script below _static on every page.
STYLES = ["katex/katex.min.css", "book.css"]
# copy-tex is KaTeX's own: a formula is copied as its TeX, once.
SCRIPTS = ["move/load.js", "page.js", "katex/copy-tex.min.js"]
# What _templates/static/webpack-macros.html would name before the other sheets.
THEME = ["basic", "styles/bootstrap", "styles/pydata-sphinx-theme", "vendor/fontawesome/6.5.2/css/all.min"]

VERSION = version("cross-entropy-verified")
WHEEL = f"cross_entropy_verified-{VERSION}-py3-none-any.whl"
STUB = re.compile(
    r'<div class="output text_plain[^>]*><div[^>]*><pre><span></span>not yet: [^<]*</pre></div>\s*</div>'
)


def address(configured: str | None, variable: str) -> str:
    """Return an address that _config.yml gives, or else the environment; nothing where neither does."""
    found = (configured or os.environ.get(variable, "")).strip()
    if found and not re.fullmatch(r"https?://[^\s/?#\"'<>]+(?:/[^\s?#\"'<>]*)?", found):
        raise ValueError(f"{variable} or its place in _config.yml: not an address: {found!r}")
    return found


def configure(app: Sphinx, config: Config) -> None:
    """Set what follows from the two addresses."""
    config.html_css_files = STYLES
    config.html_js_files = SCRIPTS
    options = config.html_theme_options
    options["repository_url"] = address(options.get("repository_url"), "XENT_REPOSITORY_URL").rstrip("/")
    for button in ("use_repository_button", "use_issues_button", "use_source_button"):
        options[button] = bool(options["repository_url"])
    if not options["repository_url"]:
        options["launch_buttons"] = {}
    site = address(config.html_baseurl, "XENT_SITE_URL")
    config.html_baseurl = config.ogp_site_url = site and site.rstrip("/") + "/"
    # The card takes no SVG.
    logo = "_static/logo.png"
    config.ogp_social_cards = {"enable": bool(site), "image": logo, "image_mini": logo}
    root = config.notfound_urls_prefix = urlsplit(config.html_baseurl).path or "/"
    config.notfound_context = {
        "title": "Not here",
        "body": "<h1>Not here</h1><p>This page moved or never was. The search (Ctrl+K) and the contents at the side "
        f'know the others: the <a href="{root}index.html">front page</a>, '
        f'<a href="{root}chapters/line.html">the line in twenty minutes</a>, '
        f'<a href="{root}chapters/08_which_loss.html">what is wrong with a loss</a>, '
        f'and <a href="{root}chapters/get.html">the package</a>.</p>',
    }
    wheels = {"wheel": WHEEL, "book_wheel": WHEEL.replace("verified", "verified_book")}
    config.myst_substitutions = {key: f'<a href="../{name}">{name}</a>' for key, name in wheels.items()}
    if site:
        app.setup_extension("sphinx_sitemap")
        config.sitemap_url_scheme = "{link}"  # one language and one version: an address has neither


def used(rules: list[Any], names: set[str]) -> str:
    """Leave out of a style sheet what is for a class that no page has: of the theme's, most."""
    text = ""
    for rule in rules:
        if rule.type == "qualified-rule":
            selectors: list[list[Any]] = [[]]
            for token in rule.prelude:
                selectors.append([]) if token == "," else selectors[-1].append(token)
            kept = [s for s in selectors if all(b.value in names for a, b in pairwise(s) if a == ".")]
            text += (
                f"{','.join(map(tinycss2.serialize, kept))}{{{tinycss2.serialize(rule.content)}}}"
                if kept
                else ""
            )
        elif rule.type == "at-rule" and rule.at_keyword in ("media", "supports"):
            inside = used(tinycss2.parse_rule_list(rule.content, True, True), names)
            text += f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{{inside}}}\n" if inside else ""
        else:
            text += rule.serialize()
    return text


def write_bundle(app: Sphinx, exception: Exception | None) -> None:
    """Write the figures' palette and the style sheets into one sheet: a browser waits for each of them."""
    sheets: list[str] = getattr(app.env, "style_sheets", [])
    if exception or app.builder.format != "html" or not sheets:
        return
    static = Path(app.outdir) / "_static"
    text = "".join(
        f"{where} {{ {' '.join(f'--{name}: {colour};' for name, colour in PALETTE[theme].items())} }}\n"
        for where, theme in ((":root", "light"), ('html[data-theme="dark"]', "dark"))
    )
    for name in sheets:
        text += (Path(app.outdir) / name).read_text(encoding="utf-8") + "\n"
    # What the sheets ask for lies beside this one, but for KaTeX's fonts.
    text = text.replace("url(fonts/", "url(katex/fonts/")
    # The theme's icons are drawn by a part of their font, in book.css.
    text = re.sub(r"@font-face\s*\{[^}]*webfonts/[^}]*\}", "", text)
    # Without a script a page is light, whatever the system is: half of the sheets would follow it, and half not.
    text = re.sub(r'\[data-theme="?light"?\]', ':is([data-theme="light"], [data-theme="auto"])', text)
    text = text.replace(
        "(prefers-color-scheme: dark)", "(prefers-color-scheme: dark) and (scripting: enabled)"
    )
    pages = [path.read_text(encoding="utf-8") for path in Path(app.outdir).rglob("*.html")]
    names = {
        name for page in pages for found in re.findall(r'class="([^"]*)"', page) for name in found.split()
    }
    names |= {
        name for path in static.rglob("*.js") for name in re.findall(r"[\w-]+", path.read_text("utf-8"))
    }
    (static / "bundle.css").write_text(
        used(tinycss2.parse_stylesheet(text, True, True), names), encoding="utf-8"
    )


def write_wheel(app: Sphinx, exception: Exception | None) -> None:
    """Build both packages from a copy, and put them beside the page that offers them."""
    if exception or "chapters/get" not in app.env.found_docs:
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(Path(app.srcdir) / name, folder)
        leave = shutil.ignore_patterns("*.egg-info", "__pycache__")
        held = Path(folder) / "code" / "xent_book" / "data" / "experiments"  # which the chapters read
        for source, copy in (("code", Path(folder) / "code"), ("experiments", held)):
            shutil.copytree(Path(app.srcdir) / source, copy, ignore=leave)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--wheel-dir", str(app.outdir), folder, f"{folder}/code/xent_book"], check=True)


REWRITTEN: list[tuple[str, Any]] = [
    # Speech reads what a bar says, and not a name that hides it.
    ('<summary aria-label="Toggle hidden content">', "<summary>"),
    # What may scroll on a phone can be reached by the keyboard, as the theme's script has it for listings.
    ('<div class="pst-scrollable-table-container"|<table class="results"', r'\g<0> tabindex="0"'),
    # Words, punctuation and spaces of code have the colour of their listing: no element of their own.
    ('<span class="(?:n|nn|p|pre|w)">([^<]*)</span>', r"\1"),
    # sphinx-exercise gives each on a page the same.
    (' id="(?:exercise|solution)-content"', ""),
    # docutils' roles of a list of works, which the standard has given up.
    (' role="(?:doc-biblioentry|list)"', ""),
    # The name of a test is broken where its words end, and so is any in a table.
    (r"\btest_\w+\.py::\w+", lambda found: found[0].replace("_", "_<wbr>")),
    ("<td.*?</td>", lambda cell: re.sub("(?<=[a-z][._])(?=[a-z][^<>]*</code>)", "<wbr>", cell[0])),
]


def lighten(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Defer the page's scripts, and give its pictures their sizes."""
    # A script in the page itself would run before the deferred file that it needs.
    context["script_files"] = [
        script
        for script in context["script_files"]
        if "DOCUMENTATION_OPTIONS" not in (getattr(script, "attributes", {}).get("body") or "")
    ]
    for script in context["script_files"]:
        if getattr(script, "filename", None):
            script.attributes["defer"] = "defer"
    if "chapters/get" in app.env.found_docs:
        repository = app.config.html_theme_options["repository_url"]
        report = f'<a href="{repository}/issues">Report a mistake</a> · ' if repository else ""
        context["theme_extra_footer"] = (
            f'<p>{report}<a href="{app.builder.get_relative_uri(page, "chapters/get")}#cite">Cite</a> · '
            f"Version {VERSION} · "
            "Text: CC BY 4.0, code: MIT</p>"
        )
    if not app.config.html_baseurl:  # then it would be no address
        context["metatags"] = re.sub(r'<meta property="og:url"[^>]*>', "", context.get("metatags", ""))
    if page == app.config.root_doc:  # the book's title stands beside it already
        context["title"] = "From binary labels to LLM distillation"
    named = [sheet.filename for sheet in context["css_files"]]
    app.env.style_sheets = [*(f"_static/{name}.css" for name in THEME), *named]  # type: ignore[attr-defined]
    context["css_files"] = []
    images: dict[str, str] = getattr(app.builder, "images", {})
    files = {name: Path(app.srcdir) / source for source, name in images.items()}

    def image(match: re.Match[str]) -> str:
        source = re.search(r'src="[^"]*?_images/([^/"]+)"', match[0])
        size = get_image_size(files[source[1]]) if source and source[1] in files else None
        sizes = f'width="{size[0]:.0f}" height="{size[1]:.0f}"' if size else ""
        return match[0].replace("<img ", f'<img loading="lazy" decoding="async" {sizes} ', 1)

    body = re.sub(r"<img\b[^>]*>", image, context.get("body", ""))
    if "chapters/get" in app.env.found_docs:  # what a check says of a stub says nothing to who only reads
        how = f"{context['pathto']('chapters/get')}#run-the-chapters"
        body = STUB.sub(f'<p class="to-run"><a href="{how}">How to try it</a></p>', body)
    for pattern, instead in REWRITTEN:
        body = re.sub(pattern, instead, body, flags=re.DOTALL)
    if page.startswith("chapters/api"):
        # A docstring's formula is not broken for a phone: it scrolls, and the keyboard has to reach it.
        body = body.replace('<span class="katex-display"', '<span class="katex-display" tabindex="0"')
    context["body"] = body


def link_names(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make `xent.softmax` in the text of a page a link to the reference."""
    known = app.env.domaindata["py"]["objects"]
    for literal in list(doctree.findall(nodes.literal)):
        entry = known.get(re.sub(r"\(.*\)$", "", literal.astext()))
        if (
            entry
            and entry.docname != docname
            and not isinstance(literal.parent, nodes.reference | nodes.title)
        ):
            uri = f"{app.builder.get_relative_uri(docname, entry.docname)}#{entry.node_id}"
            literal.replace_self(nodes.reference("", "", literal.deepcopy(), refuri=uri, internal=True))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the build."""
    # Jupyter Book sets this for an extension that asks another host, and that the book does not load.
    app.add_config_value("comments_config", {}, "")
    app.connect("config-inited", configure)
    app.connect("doctree-resolved", link_names)
    app.connect("html-page-context", lighten, priority=990)
    # After the theme, which writes the colours of code at the end.
    app.connect("build-finished", write_bundle, priority=990)
    app.connect("build-finished", write_wheel)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
