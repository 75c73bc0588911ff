"""The page of a run, and the files that a run writes while it goes on."""

import csv
import re
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from eve_acme.config import EVEConfig
from eve_acme.errors import UsageError
from eve_acme.experiments import live, plots, run_page, tasks
from eve_acme.experiments.plan import Plan
from eve_acme.experiments.recorder import Recorder
from eve_acme.files import write_sealed_json
from eve_acme.types import Episode


@pytest.fixture
def run(tmp_path):
    """A run of Deep Sea that is going on: two of ten episodes, the first one bad."""
    plan = Plan("deep_sea/0", "eve", "embedded", 3, "eve omega=1", 10, False, EVEConfig(omega=1.0))
    write_sealed_json(tmp_path / "config.json", plan.describe())
    (tmp_path / "episodes.csv").write_text("episode,length,total,bad\n1,10,0.0,1\n2,10,0.99,0\n")
    (tmp_path / "metrics.csv").write_text("episode,env_steps,loss,q\n1,10,2.0,0.1\n2,20,0.5,0.25\n")
    return tmp_path


def titles(text):
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    return [t.text for svg in pictures for t in ElementTree.fromstring(svg).iter("title")]


def test_a_run_that_goes_on(run):
    text = run_page.build(run, refresh=7)
    assert "<h1>eve omega=1 on deep_sea/0, seed 3</h1>" in text
    assert "2 of 10 episodes so far" in text
    assert '<meta http-equiv="refresh" content="7">' in text
    assert titles(text) == ["mean of the last 100: now 0.495", "loss: now 0.5", "q: now 0.25"]
    assert text.count("<svg") == 4  # Returns, bad episodes, loss and q.
    assert f"eve run --resume {run} --episodes 10" in text
    assert "&quot;omega&quot;: 1.0" in text
    assert not re.search(r"https?://", text)


def test_a_run_that_has_ended(run):
    write_sealed_json(run / "summary.json", dict(finished=True, episodes=2, solved_episode_20=None))
    (run / "probe").mkdir()
    (run / "probe" / "probe.csv").write_text("visits,std\n0,2.0\n3,1.0\n")
    (run / "probe" / "probe.json").write_text('{"title": "spread"}')
    text = run_page.write(run).read_text()
    assert "2 of 10 episodes, finished" in text and 'http-equiv="refresh"' not in text
    assert "<td>solved episode 20</td><td>-</td>" in text
    assert f"eve run --resume {run} --episodes 20" in text
    assert "<h2>Visits and spread</h2>" in text


@pytest.mark.parametrize("rest", ["3,1", "3,10,", "3,10,x,0\n", ""])
def test_a_row_that_is_being_written_is_left_out(run, rest):
    with open(run / "episodes.csv", "a") as file:
        file.write(rest)
    assert "2 of 10 episodes so far" in run_page.build(run)


def test_a_run_that_has_just_begun(run):
    for name in ("episodes.csv", "metrics.csv"):
        (run / name).unlink()
    text = run_page.build(run)
    assert "0 of 10 episodes so far" in text and "<svg" not in text


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(UsageError, match="DIR: got"):
        run_page.build(tmp_path)


def test_spans_of_many_episodes():
    number, least, most = plots.bins(np.arange(1000.0))
    assert len(number) == plots.BINS and number[-1] == 1000 and most[-1] == 999.0
    assert least[0] == 0.0 and (least[1:] == most[:-1] + 1).all()
    assert [list(x) for x in plots.bins(np.array([3.0, 1.0]))] == [[1, 2], [3, 1], [3, 1]]


def test_a_resumed_run_keeps_the_metrics_before_its_checkpoint(tmp_path):
    recorder = Recorder(tasks.parse("catch/0"))
    engine = SimpleNamespace(report=lambda episode: dict(episode=episode.number, loss=0.5))
    files = live.LiveFiles(tmp_path, recorder, engine)
    for number in (1, 2, 3):
        recorder.count(10, 1.0, 0, False)
        files.write(Episode(number, 10, 1.0))
    files.write(Episode(3, 10, 1.0))  # The same episode again, as at a run's end.
    assert _column(tmp_path / "metrics.csv", "episode") == ["1", "2", "3"]
    del recorder.returns[2:], recorder.lengths[2:]
    recorder.count(10, 7.0, 0, False)
    again = live.LiveFiles(tmp_path, Recorder(tasks.parse("catch/0")), engine)
    assert again._rows == []
    recorder.returns.pop(), recorder.lengths.pop()
    resumed = live.LiveFiles(tmp_path, recorder, engine)
    recorder.count(10, 7.0, 0, False)
    resumed.write(Episode(3, 10, 7.0))
    assert _column(tmp_path / "metrics.csv", "episode") == ["1", "2", "3"]
    assert _column(tmp_path / "episodes.csv", "total") == ["1.0", "1.0", "7.0"]


def test_long_runs_write_seldom(tmp_path):
    recorder, written = Recorder(tasks.parse("catch/0")), []
    engine = SimpleNamespace(
        report=lambda episode: written.append(episode.number) or {"episode": 1}
    )
    files = live.LiveFiles(tmp_path, recorder, engine)
    for second in range(2000):
        files.update(Episode(second, 1, 0.0), files._started + second)
    # Every 2 seconds up to 100, then every fiftieth of the time: 50 + log(20) / log(1.02) = 201.
    assert 180 < len(written) < 210


def _column(path, name):
    with open(path, newline="") as file:
        return [row[name] for row in csv.DictReader(file)]
