"""`eve report --html`: one file that opens offline, whole and well-formed."""

import html.parser
import re
from xml.etree import ElementTree

import pytest
import result_tables

from eve_acme.cli.main import main
from eve_acme.experiments import page

VOID = ("meta", "br", "hr")


class Reader(html.parser.HTMLParser):
    """Checks that tags are closed in order; collects attributes and headings."""

    def __init__(self):
        super().__init__()
        self.open, self.attributes, self.headings = [], [], []

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    frame = result_tables.everything()
    some = frame["task"].str.match("deep_sea|catch/0|bandit/0")
    frame[some].to_csv(folder / "table.csv.gz", index=False)
    (folder / "README.md").write_text("`eve sweep` at commit 1234567 <b> https://example.org\n")
    assert main(["report", str(folder), "--html", str(folder / "out.html")]) == 0
    return (folder / "out.html").read_text()


def test_it_is_whole(text):
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    for heading in ("Deep Sea: sizes", "Ablations", "Sensitivity: deep_sea:size=20"):
        assert heading in reader.headings
    assert "Scores of experiments, with 95 % intervals" in reader.headings
    assert "Capabilities" not in reader.headings  # Two tags make no radar.


def test_it_asks_for_nothing(text):
    reader = Reader()
    reader.feed(text)
    for tag, name, value in reader.attributes:
        assert name not in ("src", "action", "data", "poster", "srcset"), (tag, name, value)
        if name in ("href", "xlink:href"):
            assert value.startswith("#"), (tag, value)
        assert "http" not in (value or "") or tag == "meta", (tag, name, value)
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttp", text)
    assert f'content="{page.POLICY}"' in text
    assert re.findall(r"https?://[^\s<]*", text) == [
        "https://example.org"
    ]  # Of the notes, as text.


def test_notes_are_text(text):
    assert "at commit 1234567 &lt;b&gt; https://example.org" in text


def test_its_pictures_are_well_formed_and_say_which_run_is_which(text):
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) >= 6
    titles = [title.text for svg in pictures for title in ElementTree.fromstring(svg).iter("title")]
    assert "EVE (paper), deep_sea:size=20, seed 1: episodes to solve 457" in titles
    assert len(titles) > 100


def test_light_and_dark(text):
    assert "prefers-color-scheme: dark" in text
    colours = set(re.findall(r"var\((--c\w+)\)", text))
    light, dark = re.findall(r":root \{(.*?)\}", text)
    assert all(f"{name}:" in light and f"{name}:" in dark for name in colours)


def test_a_file_that_cannot_be_written(tmp_path, capsys):
    result_tables.deep_sea("dqn", "default", "deep_sea/0", 0).to_csv(
        tmp_path / "table.csv", index=False
    )
    path = tmp_path / "nowhere" / "out.html"
    assert main(["report", str(tmp_path), "--html", str(path)]) == 2
    assert "--html: got" in capsys.readouterr().err


def test_a_page_escapes_what_it_shows():
    text = page.page("<a>", "b & c", [page.Section("<d>", page.table(["<e>"], [["<f>"]]))], 5)
    for plain in (
        "&lt;a&gt;",
        "b &amp; c",
        "&lt;d&gt;",
        "<th>&lt;e&gt;</th>",
        "<td>&lt;f&gt;</td>",
    ):
        assert plain in text
    assert '<meta http-equiv="refresh" content="5">' in text
