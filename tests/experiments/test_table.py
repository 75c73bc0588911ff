"""The tidy table: from runs, from a file, and from damaged ones."""

import gzip

import pytest

from eve_acme.errors import UsageError
from eve_acme.experiments import sweeps, table
from eve_acme.files import write_sealed_json


def _run(directory, label, seed, solved, rows):
    directory.mkdir(parents=True)
    summary = dict(label=label, task="deep_sea:size=10", seed=seed, finished=True)
    summary |= dict(solved_episode_20=solved, solved_episode_10=solved)
    write_sealed_json(directory / "summary.json", summary)
    write_sealed_json(directory / "config.json", dict(stop_when_solved=True))
    lines = ["steps,episode,total_return,episode_return,total_bad_episodes"]
    lines += [",".join(map(str, row)) for row in rows]
    (directory / "results.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def results(tmp_path):
    _run(tmp_path / "a", "eve paper omega=1", 0, 2, [(10, 1, 0.5, 0.5, 1), (20, 2, 1.5, 1.0, 1)])
    _run(tmp_path / "b", "dqn", 4, None, [(10, 1, 0.0, 0.0, 1)])
    return tmp_path


def test_rows_of_all_runs(results):
    frame = table.read(table.write(results))
    assert frame["agent"].tolist() == ["eve", "eve", "dqn"]
    assert frame["setting"].tolist() == ["paper omega=1", "paper omega=1", "default"]
    assert frame["total_return"].tolist() == [0.5, 1.5, 0.0]
    assert frame["solved_20"].fillna(-1).tolist() == [2, 2, -1]
    assert frame["stopped"].fillna("").tolist() == ["solved", "solved", ""]
    assert frame["finished"].all()


def test_a_table_is_read_compressed(results):
    path = results / "table.csv.gz"
    path.write_bytes(gzip.compress(table.write(results).read_bytes()))
    assert table.read(path).equals(table.read(results / "table.csv"))


def test_a_table_that_was_cut_off_is_made_again_from_its_runs_or_refused(results):
    path = table.write(results)
    whole = table.read(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"table\.csv"):
        table.read(path)
    assert table.read(results).equals(whole)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UsageError, match="a folder with runs"):
        table.read(tmp_path)


@pytest.mark.parametrize(
    "name, count", [("exploration", 62), ("bsuite", 468), ("encodings", 9), ("catch/0", 1)]
)
def test_sets_of_tasks(name, count):
    assert len(sweeps.task_set(name)) == count


def test_the_lite_set_has_every_fourth_id():
    tasks = sweeps.task_set("bsuite-lite")
    assert [t for t in tasks if t.startswith("deep_sea/")] == [
        f"deep_sea/{i}" for i in (0, 4, 8, 12, 16, 20)
    ]
