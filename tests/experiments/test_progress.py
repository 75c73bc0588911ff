"""Progress within an episode, by step."""

from eve_acme.experiments import progress as progress_lib
from eve_acme.experiments import tasks
from eve_acme.experiments.progress import Progress
from eve_acme.experiments.recorder import Recorder


def test_a_long_episode_shows_its_steps(monkeypatch, capsys):
    monkeypatch.setattr(progress_lib, "LINE_SECONDS", 0.0)
    recorder = Recorder(tasks.parse("catch/0"))
    with Progress(recorder, 5, quiet=False) as progress:
        progress.step(30, now=progress._started + 1.0)
        progress.step(31, now=progress._started + 1.1)  # Within half a second: not again.
        recorder.count(40, 1.0, 0, False)
        progress.update(40)
        progress.step(52, now=progress._started + 100.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "episode 1/5  step 30 of its episode"
    assert lines[-1].startswith("episode 2/5  return 1.00") and lines[-1].endswith(
        "step 12 of its episode"
    )
    assert not any("step 31" in line for line in lines)
