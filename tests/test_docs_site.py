"""The documentation site builds offline, and none of its links is broken."""

import html.parser
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


class Links(html.parser.HTMLParser):
    """The targets of a page's links and images, what it loads, and its anchors."""

    def __init__(self, text: str):
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors.add(values.get("id"))
        if tag == "a" and "href" in values:
            self.targets.append(values["href"])
        elif (tag == "link" and values.get("rel") == "stylesheet") or "src" in values:
            self.loaded.append(values.get("href") or values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def hooks():
    path = ROOT / "docs" / "mkdocs_hooks.py"
    spec = importlib.util.spec_from_file_location("mkdocs_hooks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_document_is_a_page(site, hooks):
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")}
    pages = {path.stem for path in site.glob("*.html")}
    assert pages == documents | {pathlib.Path(name).stem for name in hooks.PAGES.values()} | {
        "404",
        "search",
    }


def test_links_lead_to_pages_and_anchors_that_exist(site):
    pages = {path.name: Links(path.read_text()) for path in site.glob("*.html")}
    checked = 0
    for name, page in pages.items():
        for target in page.targets:
            if target.startswith(("http://", "https://", "/")):  # 404.html's are absolute
                continue
            path, _, anchor = target.partition("#")
            where = site / (path or name)
            assert where.exists(), f"{name} links to {target}"
            if anchor and where.suffix == ".html":
                assert anchor in pages[where.name].anchors, f"{name} links to {target}"
            checked += 1
    assert checked > 100


def test_pages_load_nothing_from_other_hosts(site):
    loaded = [item for path in site.glob("*.html") for item in Links(path.read_text()).loaded]
    assert loaded and not [item for item in loaded if item.startswith(("http", "//"))]


def find(path: str) -> list[pathlib.Path]:
    """Files of the repository whose path ends like this one."""
    folders = (
        "",
        "eve_acme",
        "eve_acme/core",
        "eve_acme/distributed",
        "docker",
        "eve_acme/cli/kubernetes",
    )
    return [file for folder in folders for file in (ROOT / folder).glob(path)]


DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docker/**/*.md")]


@pytest.mark.parametrize("document", sorted(str(path.relative_to(ROOT)) for path in DOCUMENTS))
def test_files_that_documents_name_exist(document):
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL)
    named = re.findall(r"`([\w./*-]+\.(?:py|yaml|yml|toml))`", text)
    assert [path for path in named if not find(path)] == []


def test_the_table_of_where_to_change_what_names_what_is_there():
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## Where to change what")[2]
    inside = re.findall(r"((?:`[\w.]+`(?:,? and |, )?)+) in `([\w/]+\.py)`", table)
    inside += [(names, path) for path, names in re.findall(r"`([\w/]+\.py)` \((`[^)]+)\)", table)]
    pairs = [(name, path) for names, path in inside for name in re.findall(r"`([\w.]+)`", names)]
    assert len(pairs) >= 12
    for name, path in pairs:
        (file,) = find(path)
        assert re.search(rf"\b{name.split('.')[-1]}\b", file.read_text()), (name, path)


@pytest.mark.parametrize(
    "source, link, expected",
    [
        ("README.md", "[Library](docs/library.md#logs)", "[Library](library.md#logs)"),
        ("docs/library.md", "[top](../README.md)", "[top](index.md)"),
        (
            "docker/README.md",
            "[their README](kubernetes/README.md)",
            "[their README](kubernetes.md)",
        ),
        ("docs/library.md", "[configs/](../configs)", "configs/"),  # in the repository alone
        ("docs/library.md", "[none](none.md)", "[none](none.md)"),  # mkdocs reports it
        ("docs/library.md", "[paper](https://a.b/c) [x](#y)", "[paper](https://a.b/c) [x](#y)"),
    ],
)
def test_links_are_adapted(hooks, source, link, expected):
    assert hooks.adapt_links(link, source) == expected
