"""The tidy table: from runs, from a file, and from damaged ones."""

import shutil

import pytest

from eve_acme.errors import UsageError
from eve_acme.experiments import sweeps, table
from eve_acme.files import write_sealed_json


def _run(directory, label, seed, solved, rows, last="total_bad_episodes"):
    directory.mkdir(parents=True)
    summary = dict(label=label, task="deep_sea:size=10", seed=seed, finished=True)
    summary |= dict(solved_episode_20=solved, solved_episode_10=solved)
    write_sealed_json(directory / "summary.json", summary)
    write_sealed_json(directory / "config.json", dict(stop_when_solved=True))
    lines = [f"steps,episode,total_return,episode_return,{last}"]
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


def test_episodes_of_a_launch_are_summed_up(results):
    """It has episodes.csv alone; bad episodes are empty where the task knows none."""
    (results / "b" / "results.csv").unlink()
    lines = ["episode,actor,length,total,bad", *(f"{i},0,10,0.5,1" for i in range(1, 1001))]
    (results / "b" / "episodes.csv").write_text("\n".join(lines) + "\n")
    frame = table.read(results)
    frame = frame[frame["agent"] == "dqn"]
    assert 100 < len(frame) <= table.GRID
    assert (frame["steps"] == 10 * frame["episode"]).all()
    last = frame.iloc[-1]
    assert (last["episode"], last["total_return"], last["total_bad_episodes"]) == (1000, 500, 1000)


def test_columns_of_all_experiments_are_kept(results):
    _run(results / "c", "eve", 0, None, [(7, 1, -1.0, -1.0, 3.5)], last="total_regret")
    frame = table.read(table.write(results))
    assert list(frame.columns[: len(table.REQUIRED)]) == list(table.REQUIRED)
    assert frame["total_regret"].dropna().tolist() == [3.5]
    assert frame["total_bad_episodes"].dropna().tolist() == [1, 1, 1]


def test_rows_of_runs_that_are_gone_are_kept_and_of_others_replaced(results):
    first = table.read(table.write(results))
    shutil.rmtree(results / "b")
    shutil.rmtree(results / "a")
    _run(results / "a", "eve paper omega=1", 0, 3, [(10, 1, 0.5, 0.5, 0), (20, 3, 1.5, 1.0, 1)])
    again = table.read(table.write(results))
    assert again[again["agent"] == "dqn"].to_csv() == first[first["agent"] == "dqn"].to_csv()
    assert again[again["agent"] == "eve"]["episode"].tolist() == [1, 3]
    before = (results / "table.csv.gz").read_bytes()
    shutil.rmtree(results / "a")
    assert table.write(results).read_bytes() == before


def test_a_table_of_before_is_read_and_replaced(results):
    """Not compressed, and without the columns that were added."""
    whole = table.read(results)
    whole[list(table.REQUIRED)].to_csv(results / "table.csv", index=False)
    assert len(table.read(results / "table.csv")) == len(whole)
    shutil.rmtree(results / "a")
    path = table.write(results)
    assert path.name == "table.csv.gz" and not (results / "table.csv").exists()
    assert len(table.read(path)) == len(whole)


@pytest.mark.parametrize("left", [0, 10, -20, -1])
def test_a_table_that_was_cut_off_is_made_again_from_its_runs_or_refused(results, left, capsys):
    path = table.write(results)
    whole = table.read(path)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(UsageError, match=r"table\.csv"):
        table.read(path)
    assert table.read(results).equals(whole)
    damaged = path.read_bytes()
    assert table.read(table.write(results)).equals(whole)
    assert (results / "table.csv.gz.damaged").read_bytes() == damaged
    assert "skipped" in capsys.readouterr().err
    path.write_bytes(damaged)
    for name in ("a", "b"):
        shutil.rmtree(results / name)
    with pytest.raises(UsageError, match=r"table\.csv\.gz"):
        table.write(results)
    assert path.read_bytes() == damaged


def test_a_folder_of_folders_with_tables(results, tmp_path_factory):
    whole, parent = table.read(results), tmp_path_factory.mktemp("parent")
    for agent in ("eve", "dqn"):
        (parent / agent).mkdir()
        whole[whole["agent"] == agent].to_csv(parent / agent / "table.csv.gz", index=False)
    (parent / "notes").mkdir()
    found = table.read(parent)
    assert sorted(found["agent"]) == ["dqn", "eve", "eve"]


def test_a_table_of_something_else_is_refused(tmp_path):
    (tmp_path / "table.csv").write_text("agent,score\neve,1\n")
    with pytest.raises(UsageError, match="it has no column setting"):
        table.read(tmp_path)


def test_of_a_run_that_is_there_twice_the_longer_counts(results, capsys):
    _run(results / "again", "dqn", 4, None, [(10, 1, 0.0, 0.0, 1), (20, 2, 0.0, 0.0, 2)])
    frame = table.read(results)
    assert frame[frame["agent"] == "dqn"]["episode"].tolist() == [1, 2]
    assert str(results / "b") in capsys.readouterr().err


@pytest.mark.parametrize(
    "label, seed, episodes, stop, done",
    [
        ("eve paper omega=1", 0, 2, False, True),
        ("eve paper omega=1", 0, 1, False, True),
        ("eve paper omega=1", 0, 3, False, False),  # It ended when it was solved,
        ("eve paper omega=1", 0, 3, True, True),  # which is enough for this plan.
        ("eve paper omega=1", 1, 2, False, False),
        ("eve paper", 0, 2, False, False),
        ("dqn", 4, 1, True, True),
        ("dqn", 4, 2, True, False),
    ],
)
def test_which_runs_are_done(results, label, seed, episodes, stop, done):
    key = (*table.split_label(label), "deep_sea:size=10", seed)
    assert table.is_done(table.ends(table.read(results)), key, episodes, stop) == done


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
