"""Tables of runs that never were, for tests of scores, figures and reports."""

import numpy as np
import pandas as pd

BASIC = ("bandit", "catch", "mnist")
GRID = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


def deep_sea(agent, setting, task, seed, solved=None, episodes=10000):
    """A Deep Sea run that has every episode bad until 0.8 of `solved`, and none after; it ends when
    it is solved."""
    ends = solved or episodes
    grid = np.array([*(e for e in GRID if e < ends), ends])
    bad = np.minimum(grid, 0.79 * solved).astype(int) if solved else grid
    return pd.DataFrame(
        dict(
            agent=agent,
            setting=setting,
            task=task,
            seed=seed,
            episode=grid,
            steps=10 * grid,
            episode_return=0.0,
            total_return=0.99 * (grid - bad),
            total_bad_episodes=bad,
            solved_20=solved,
            solved_10=solved and int(0.9 * solved),
            finished=True,
            stopped="solved" if solved else "",
            good_episode_fraction=0.2 if solved else 0.0,
            final_mean_return=0.2,
            parameters=100,
            wall_seconds=1.0,
        )
    )


def regret(agent, setting, task, seed, share, total=10000):
    """A run of an experiment that bsuite scores by regret: `share` of 1 an episode."""
    frame = deep_sea(agent, setting, task, seed, episodes=total)
    grid = frame["episode"]
    more = dict(total_bad_episodes=np.nan, total_return=(1 - share) * grid)
    return frame.assign(total_regret=share * grid, raw_return=-share * grid, **more)


def everything():
    """Runs for every figure."""
    runs = []
    settings = [("eve", "default", 1.0), ("eve", "paper", 4.0), ("boot_dqn", "default", 1.5)]
    for agent, setting, factor in settings:
        for size in (10, 20, 30, 50):
            for seed in range(3):
                solved = int(factor * (size**1.5 + 10 * seed)) + 60
                runs.append(deep_sea(agent, setting, f"deep_sea:size={size}", seed, solved))
    for size in (10, 20, 30):
        runs.append(deep_sea("dqn", "default", f"deep_sea:size={size}", 0))
        for encoding in ("rotated", "two_hot"):
            for seed in range(3):
                task = f"deep_sea:size={size},encoding={encoding}"
                runs.append(deep_sea("eve", "default", task, seed, 110 + size * 5 + 9 * seed))
    for field, numbers in (("omega", (1e3, 1e4, 1e6, 1e7)), ("prior_std", (2.0, 200.0))):
        for number in numbers:
            for seed in range(3):
                solved = None if number == 1e7 else int(150 + number**0.4 + 10 * seed)
                task = "deep_sea:size=20"
                runs.append(deep_sea("eve", f"{field}={number:g}", task, seed, solved, 2000))
                runs.append(deep_sea("eve", f"paper {field}={number:g}", task, seed, solved, 2000))
    for name in ("epsilon_greedy", "mean_bootstrap", "not_distributional", "relu"):
        for seed in range(2):
            solved = 700 if name == "relu" else None
            runs.append(deep_sea("eve", f"paper_{name}", "deep_sea:size=10", seed, solved, 2000))
    for seed in range(2):
        runs.append(deep_sea("eve", "activation=relu", "deep_sea:size=10", seed, 300 + seed))
    for agent, setting, share in (("eve", "default", 0.1), ("dqn", "default", 0.3)):
        for seed in range(2):
            for task in ("deep_sea/0", "deep_sea_stochastic/0"):
                runs.append(deep_sea(agent, setting, task, seed, 120 if share < 0.2 else None))
            names = [f"{name}{kind}" for name in BASIC for kind in ("", "_noise", "_scale")]
            for name in (*names, "umbrella_length", "umbrella_distract"):
                for index in (0, 1):
                    more = 0.05 * seed + 0.02 * index
                    runs.append(regret(agent, setting, f"{name}/{index}", seed, share + more))
    return pd.concat(runs, ignore_index=True)
