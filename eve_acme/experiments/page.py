"""A self-contained HTML page in the house style, which makes no requests and opens offline."""

import html
from collections.abc import Sequence
from typing import Any, NamedTuple

from eve_acme.experiments.figures import style

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Makes browsers block every request of the page."""


class Section(NamedTuple):
    """A part of a page: heading and HTML. A `wide` section fills a row of the page."""

    title: str
    body: str
    wide: bool = True


def page(title: str, lead: str, sections: Sequence[Section], refresh: int | None = None) -> str:
    """Returns the HTML text of a page.

    Args:
      title: title of the page, as plain text.
      lead: a sentence below the title, as plain text.
      sections: sections of the page, in order.
      refresh: interval in seconds at which browsers reload the page; None: never.
    """
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">\n'
    parts = "\n".join(
        f"<section{' class=wide' if section.wide else ''}>\n<h2>{html.escape(section.title)}</h2>\n"
        f"{section.body}\n</section>"
        for section in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
{again}<title>{html.escape(title)}</title>
<style>{_css()}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p class="lead">{html.escape(lead)}</p>
<main>
{parts}
</main>
<div id="tip" role="status" hidden></div>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns an HTML table of plain texts; a wide table scrolls horizontally."""
    head = "".join(f"<th>{html.escape(str(cell))}</th>" for cell in header)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return (
        '<div class="scroll rows"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def figure(drawn: Any, label: str) -> str:
    """Returns a Matplotlib figure as HTML."""
    return f'<div class="scroll">{style.inline(drawn, label)}</div>'


def preformatted(text: str) -> str:
    """Returns plain text as HTML that keeps its line breaks."""
    return f"<pre>{html.escape(text)}</pre>"


def _css() -> str:
    light = ";".join(f"{style.variable(colour)}:{colour}" for colour in style.DARK)
    dark = ";".join(f"{style.variable(colour)}:{value}" for colour, value in style.DARK.items())
    ink, grid, paper = (f"var({style.variable(c)})" for c in (style.INK, style.GRID, style.PAPER))
    return f"""
:root {{ color-scheme: light dark; {light} }}
@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
* {{ box-sizing: border-box }}
body {{ margin: 0 auto; padding: 1.2rem; max-width: 88rem; color: {ink}; background: {paper};
  font: 16px/1.5 system-ui, sans-serif }}
h1 {{ font-size: 1.6rem; margin: 0; overflow-wrap: anywhere }}
h2 {{ font-size: 1.1rem; margin: 0 0 .5rem; overflow-wrap: anywhere }}
.lead {{ margin: .3rem 0 1.2rem; opacity: .8 }}
main {{ display: grid; gap: 1.8rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 36rem), 1fr)) }}
section {{ min-width: 0 }}
.wide {{ grid-column: 1 / -1 }}
.scroll {{ overflow-x: auto }}
.rows {{ max-height: 44rem }}
svg {{ display: block; width: 100%; height: auto }}
svg g:hover > path, svg g:hover > use {{ stroke-width: 3px }}
table {{ border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }}
th, td {{ text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid {grid};
  white-space: nowrap }}
th {{ position: sticky; top: 0; background: {paper} }}
pre {{ overflow-x: auto; padding: .8rem; border: 1px solid {grid}; border-radius: .4rem;
  font-size: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 30rem }}
#tip {{ position: fixed; z-index: 1; padding: .25rem .5rem; border-radius: .3rem; max-width: 20rem;
  background: {ink}; color: {paper}; font-size: .8rem; pointer-events: none }}
"""


# Shows an element's title at once, also on touch screens; browsers show it late or never.
_SCRIPT = """
const tip = document.getElementById("tip");
for (const title of document.querySelectorAll("svg g > title")) {
  title.parentNode.dataset.tip = title.textContent;
}
document.addEventListener("pointerover", (event) => {
  const part = event.target.closest("[data-tip]");
  tip.hidden = !part;
  if (!part) return;
  tip.textContent = part.dataset.tip;
  const right = innerWidth - tip.offsetWidth - 4;
  tip.style.left = Math.max(4, Math.min(event.clientX + 12, right)) + "px";
  tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 10) + "px";
});
"""
