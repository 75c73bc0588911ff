"""TensorBoard and Weights & Biases as loggers: `write` takes a dict of numbers by name."""

import pathlib
from typing import Any


class TensorBoard:
    """Event files below a folder, by environment step."""

    def __init__(self, directory: pathlib.Path):
        self._directory = directory
        self._writer: Any = None

    def write(self, values: dict[str, float]) -> None:
        """One point of each curve."""
        import tensorflow as tf

        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self._directory))
        with self._writer.as_default():
            for name, value in values.items():
                tf.summary.scalar(name, value, step=int(values["env_steps"]))

    def close(self) -> None:
        """Flushes."""
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases; its own environment variables say where it goes."""

    def __init__(self, name: str, config: dict[str, Any], directory: pathlib.Path):
        import wandb

        self._run = wandb.init(project="eve", name=name, config=config, dir=str(directory))

    def write(self, values: dict[str, float]) -> None:
        """One point of each curve."""
        self._run.log(values, step=int(values["env_steps"]))

    def close(self) -> None:
        """Uploads the rest."""
        self._run.finish()
