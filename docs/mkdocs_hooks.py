"""Hooks of mkdocs.yml: adds the pages that live outside docs/, and adapts links between the two.

Documents link to each other by their paths in the repository, so that they also work where the
repository is browsed. On the site all pages are in one folder.
"""

import pathlib
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "docker/README.md": "docker.md",
    "docker/kubernetes/README.md": "kubernetes.md",
}
"""Documents outside docs/ and the names of their pages."""
SOURCES = {name: source for source, name in PAGES.items()}
LINK = re.compile(r"\[([^\[\]]*)\]\(([^\s()#:]+)(#[^\s()]*)?\)")
"""A link to a file: text, path, anchor. URLs (they have a colon) and bare anchors do not match."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents of `PAGES` to the site."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapts the links of one page."""
    return adapt_links(markdown, SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}"))


def adapt_links(markdown: str, source: str) -> str:
    """Rewrites the links of a document for the site.

    A link to a document of the site becomes a link to its page. The text alone stays of a link to
    another file of the repository. A link to a file that does not exist stays as it is, and
    mkdocs reports it.

    Args:
      markdown: the document's text.
      source: the document's path in the repository.
    """

    def adapt(link: re.Match[str]) -> str:
        text, path, anchor = link[1], link[2], link[3] or ""
        target = (ROOT / source).parent.joinpath(path).resolve()
        if not (target.is_relative_to(ROOT) and target.exists()):
            return link[0]
        name = target.relative_to(ROOT).as_posix()
        if name in PAGES:
            return f"[{text}]({PAGES[name]}{anchor})"
        if name.startswith("docs/"):
            return f"[{text}]({name.removeprefix('docs/')}{anchor})"
        return text

    return LINK.sub(adapt, markdown)
