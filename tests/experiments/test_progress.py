"""Progress within an episode, by step."""

from eve_acme.experiments import output, tasks
from eve_acme.experiments.progress import Progress
from eve_acme.experiments.recorder import Recorder


def test_a_long_episode_shows_its_steps(monkeypatch, capsys):
    monkeypatch.setattr(output, "LINE_SECONDS", 0.5)
    recorder = Recorder(tasks.parse("catch/0"))
    with Progress(recorder, 5, quiet=False) as progress:
        start = progress._next
        progress.update(30, now=start + 1.0)
        progress.update(31, now=start + 1.1)  # Within half a second: not again.
        recorder.count(40, 1.0, 0, False)
        progress.update(40, now=start + 2.0)
        progress.update(52, now=start + 4.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "episodes 0/5  step 30 of the next episode",
        "episodes 1/5  return 1.00",
        "episodes 1/5  return 1.00  steps/s 6  step 12 of the next episode",
    ]
