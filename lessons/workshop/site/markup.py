"""Texts and code of the repository as HTML: formulas, links between pages, colours, and the frame
of a page."""

import html
import posixpath
import re
from itertools import cycle
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from lessons.published import REPOSITORY

ROOM = Path(__file__).parent
TEMPLATES = Environment(
    loader=FileSystemLoader(ROOM), autoescape=True, trim_blocks=True, keep_trailing_newline=True
)
GROUP = "lessons/group.html"  # a page already
PICTURES = (".png", ".svg")
BEFORE_SIGN = "[=,([;]|&#x(?:0003[CDE]|0226[45]|02192|0002C|00028|0005B);"
# Patterns in the output of latex2mathml, and replacements that browsers show as TeX does
AS_IN_TEX = {
    r"<mi>&#x0007E;</mi>": r"<mo>&#x0223C;</mo>",  # \sim
    r"<mi>&#x00394;</mi>": r'<mi mathvariant="normal">&#x00394;</mi>',  # \Delta is upright
    # \infty and \partial are no operators.
    r"<mo>(&#x0221E;|&#x02202;)</mo>": r'<mi mathvariant="normal">\1</mi>',
    r"<mover>(.{1,60}?)<mo stretchy=\"true\">&#x000AF;</mo>":
        r'<mover accent="true">\1<mo stretchy="false">&#x000AF;</mo>',
    r"<mo>&#x0002F;</mo>": r'<mo lspace="0" rspace="0">/</mo>',
    # y_{<t}
    r"(<mrow>|<mo>&#x0002C;</mo>)<mo>&#x0003C;</mo>": r'\1<mo lspace="0" rspace="0">&lt;</mo>',
    r'<mn mathvariant="double-struck">1</mn>': r"<mn>&#x1D7D9;</mn>",
    # A sign, not a difference: after a relation, a comma or an opening bracket
    rf"(<mo[^>]*>(?:{BEFORE_SIGN})</mo>(?:<mspace[^>]*/>|<mtext>&#x000A0;</mtext>)*)"
    r"<mo>(&#x02212;|&#x0002B;)</mo>":
        r'\1<mo form="prefix" lspace="0" rspace="0">\2</mo>',
    # Functions: a small space on either side, but none before a bracket
    r"<(mi|mo)>(log|exp|min|max|sin|arcsin|Pr|Var)</\1>(?=<mo[^>]*>(?:&#x00028;|\(|&#x0005B;|\[))":
        r'<mo form="prefix" lspace="0.1em" rspace="0">\2</mo>',
    r"<(mi|mo)>(log|exp|min|max|sin|arcsin|Pr|Var)</\1>":
        r'<mo form="prefix" lspace="0.1em" rspace="0.17em">\2</mo>',
}  # fmt: skip


def address_of(name: str) -> str:
    """The address on the site of a file of the repository, such as 06_identity.html for
    lessons/06_identity.ipynb."""
    if name.endswith(".ipynb") or name == GROUP:
        return posixpath.basename(name).replace(".ipynb", ".html")
    return name if name.endswith(PICTURES) else name.removesuffix(".md") + ".html"


def filled(template: str, **values) -> str:
    """A template of this folder with its values."""
    return TEMPLATES.get_template(template).render(values)


def page(address: str, title: str, body: str, template: str = "page.html", **values) -> str:
    """A page of the site."""
    up = "../" * address.count("/")
    return filled(template, up=up, title=title, body=body, repository=REPOSITORY, **values)


def mathml(tex: str, display: bool = False) -> str:
    """A formula as MathML. TeX does not say which bars of absolute values and norms open and which
    close; here they alternate."""
    from latex2mathml.converter import convert

    tex = re.sub(r"\\mathbb ?([A-Z1])", r"\\mathbb{\1}", tex)
    formula = bracketed(r"(?:&#x0007C;|\|)", convert(tex, display="block" if display else "inline"))
    formula = bracketed("&#x02016;", formula)
    for pattern, replacement in AS_IN_TEX.items():
        formula = re.sub(pattern, replacement, formula)
    return formula


def bracketed(bar: str, formula: str) -> str:
    """The formula with its first bar as an opening bracket, the second as a closing one, and so
    on."""
    forms = cycle(("prefix", "postfix"))
    return re.sub(
        rf"<mo[^>]*>(?={bar}</mo>)",
        lambda _: f'<mo form="{next(forms)}" stretchy="false">',
        formula,
    )


class Renderer(IPythonRenderer):
    """Turns the Markdown of one file of the repository into HTML, for the file's own page or the
    one at `page_address`, and adds the files that it links to to `linked`."""

    def __init__(self, file: str, linked: set[str], page_address: str = "") -> None:
        super().__init__(escape=False)
        self.file, self.linked = file, linked
        self.page_address = page_address or address_of(file)

    def to_html(self, markdown: str) -> str:
        text = MarkdownWithMath(renderer=self).render(markdown)
        stop_after_formula = r"(<math(?:(?!</math>).)*</math>)([.,;:?!)]+)"
        text = re.sub(stop_after_formula, r'<span class="whole">\1\2</span>', text)
        return text.replace("<table", '<div class="scroll"><table').replace(
            "</table>", "</table></div>"
        )

    def address(self, url: str) -> str:
        """A link's address, as seen from the page."""
        if not re.match(r"[a-z]+:|#", url):
            path, mark, anchor = url.partition("#")
            name = posixpath.normpath(posixpath.join(posixpath.dirname(self.file), path))
            self.linked.add(name)
            folder = posixpath.dirname(self.page_address) or "."
            url = posixpath.relpath(address_of(name), folder) + mark + anchor
        return html.escape(url)

    def block_math(self, body: str) -> str:
        return f'<span class="formula">{mathml(body, display=True)}</span>'

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def heading(self, text: str, level: int, **attrs) -> str:
        plain = html.unescape(re.sub(r"<[^>]*>", "", text)).strip()
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        return f'<h{level} id="{slug}">{text}</h{level}>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        return f'<a href="{self.address(url)}">{text}</a>'

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return f'<img src="{self.address(url)}" alt="{html.escape(text)}">'

    def block_code(self, code: str, info: str | None = None) -> str:
        return highlighted(code, (info or "text").split()[0])


def highlighted(code: str, language: str = "python") -> str:
    """Code in colours, as a block."""
    named = {"cff": "yaml", "jsonl": "json"}.get(language, language)
    lexer = get_lexer_by_name(named, stripnl=False)
    colored = highlight(code, lexer, HtmlFormatter(nowrap=True)).rstrip("\n")
    return f'<pre tabindex="0"><code>{colored}</code></pre>\n'
