"""`eve figure` as a user meets it: files, and errors in one line."""

import pytest
import result_tables

from eve_acme.cli.main import main


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    result_tables.everything().to_csv(folder / "table.csv.gz", index=False)
    return folder


def test_a_figure_is_two_files(results, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert main(["figure", "sizes", str(results), "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["sizes.png", "sizes.svg"]
    assert str(out / "sizes.png") in capsys.readouterr().out


def test_figures_of_two_tasks_are_files_of_their_own(results, tmp_path):
    words = ["figure", "curves", str(results), "--out", str(tmp_path), "--task"]
    for task in ("catch/0", "deep_sea:size=10"):
        assert main([*words, task]) == 0
    names = sorted(path.name for path in tmp_path.glob("*.png"))
    assert names == ["curves-catch-0.png", "curves-deep_sea-size10.png"]


@pytest.mark.parametrize(
    "words, named",
    [
        (["pie"], "NAME: got 'pie', allowed is one of radar"),
        (["sizes", "--agents", "ppo"], "--agents: got 'ppo'"),
        (["curves", "--task", "catch/99"], "--task: got 'catch/99'"),
        (["failures", "--size", "31"], "--size: got 31, allowed is one that RESULTS have: 10, 20"),
        (["radar", "--threshold", "15"], "--threshold"),
        (["spread"], "figure: got RESULTS without a probe.csv"),
        (["ablations", "--agents", "dqn"], "figure: got RESULTS without ablations"),
    ],
)
def test_bad_words_are_refused_in_one_line(words, named, results, tmp_path, capsys):
    out = tmp_path / "new"
    assert main(["figure", words[0], str(results), *words[1:], "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("results", ["nowhere", "."])
def test_no_results(results, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["figure", "sizes", results, "--out", "new"]) == 2
    assert f"RESULTS: got {results!r}" in capsys.readouterr().err
