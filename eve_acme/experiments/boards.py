"""Loggers for TensorBoard and Weights & Biases: `write` takes a dict from metric to value."""

import pathlib
from typing import Any


class TensorBoard:
    """Writes event files to a folder; the x axis is the environment step."""

    def __init__(self, directory: pathlib.Path):
        self._directory = directory
        self._writer: Any = None

    def write(self, values: dict[str, float]) -> None:
        """Logs one point of each metric, at step `values["env_steps"]`."""
        import tensorflow as tf

        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self._directory), flush_millis=5000)
        with self._writer.as_default():
            for name, value in values.items():
                tf.summary.scalar(name, float(value), step=int(values["env_steps"]))

    def close(self) -> None:
        """Flushes and closes the event file."""
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """Logs to a run of Weights & Biases, which wandb's own environment variables configure."""

    def __init__(self, name: str, config: dict[str, Any], directory: pathlib.Path):
        import wandb

        self._run = wandb.init(project="eve", name=name, config=config, dir=str(directory))

    def write(self, values: dict[str, float]) -> None:
        """Logs one point of each metric, at step `values["env_steps"]`."""
        self._run.log(values, step=int(values["env_steps"]))

    def close(self) -> None:
        """Uploads the remaining data and finishes the run."""
        self._run.finish()
