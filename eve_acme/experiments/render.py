"""Renders an environment's states: Gymnasium's frames, text as an image, or a grid."""

import io
import pathlib
import re
from typing import Any

import dm_env
import numpy as np

from eve_acme.environments.wrappers import Wrapper
from eve_acme.errors import UsageError
from eve_acme.experiments import external, tasks
from eve_acme.files import write_atomically

MOST_FRAMES = 1000
SECONDS = 0.1
"""Duration of a frame of a GIF."""
SIDE = 320
"""Longer side, in pixels, of an enlarged grid."""
VIDEO, SCREEN = ("rgb_array", "ansi"), ("human", "ansi")
_ESCAPE = re.compile(r"\x1b\[([0-9;]*)m")


class Watched(Wrapper):
    """Passes every state to `show`, as an image, a text, or a grid of numbers."""

    def __init__(self, environment: dm_env.Environment, mode: str, show: Any):
        super().__init__(environment)
        self._mode, self._show = mode, show

    def reset(self) -> dm_env.TimeStep:
        return self._seen(self._environment.reset())

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._seen(self._environment.step(action))

    def _seen(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        if self._mode == "grid":
            self._show(np.asarray(timestep.observation))
        elif self._mode != "human":  # Here the environment draws its own window.
            self._show(self._environment.render())
        return timestep


def load(task: tasks.Task, seed: int, wanted: tuple[str, ...], show: Any) -> dm_env.Environment:
    """Loads a task's environment in a wrapper that passes every state to `show`.

    Args:
      task: the task to load.
      seed: seed of the environment.
      wanted: Gymnasium's render modes, in order of preference.
      show: takes a frame: `[height, width, 3]` uint8, a text, or a matrix of numbers.

    Raises:
      UsageError: the environment cannot be rendered; the message has the reason.
    """
    plain = tasks.load(task, seed)
    mode = getattr(plain, "render_mode", None)
    if mode in wanted:
        return Watched(plain, mode, show)
    why = "it has no render mode"
    offered = getattr(plain, "render_modes", ())
    for mode in (mode for mode in wanted if mode in offered):
        try:
            drawn = external.load(task.name, seed, render_mode=mode)
            drawn.reset()
            drawn.render()
            return Watched(external.load(task.name, seed, render_mode=mode), mode, show)
        except Exception as error:  # Third-party code may raise anything.
            why = " ".join(str(error).split())
    shape = getattr(plain.observation_spec(), "shape", ())
    if len(shape) == 2 and min(shape) > 1:
        return Watched(plain, "grid", show)
    raise UsageError(f"render: got {task.name!r}, which cannot be drawn ({why})")


def as_text(frame: Any) -> str:
    """Returns a frame as text for the terminal."""
    if isinstance(frame, str):
        return frame
    return "\n".join("".join("#" if entry else "." for entry in row) for row in frame) + "\n"


def write_gif(path: pathlib.Path, frames: list[Any]) -> None:
    """Writes frames as a GIF that loops."""
    from PIL import Image

    images = [_as_image(frame) for frame in frames]
    size = tuple(max(image.size[axis] for image in images) for axis in (0, 1))
    padded = [Image.new("RGB", size, "white") for _ in images]  # Texts differ in size.
    for canvas, image in zip(padded, images, strict=True):
        canvas.paste(image)
    first, *rest = padded
    data = io.BytesIO()
    first.save(data, "GIF", save_all=True, append_images=rest, duration=int(1000 * SECONDS), loop=0)
    write_atomically(path, data.getvalue())


def _as_image(frame: Any) -> Any:
    from PIL import Image

    if isinstance(frame, str):
        return _text_image(frame)
    frame = np.asarray(frame)
    if frame.ndim == 3:
        return Image.fromarray(frame.astype(np.uint8))
    least, most = frame.min(), frame.max()
    shade = (255 * (frame - least) / max(most - least, 1e-9)).astype(np.uint8)
    scale = max(1, SIDE // max(frame.shape))
    return Image.fromarray(np.kron(shade, np.ones((scale, scale), np.uint8)))


def _text_image(text: str) -> Any:
    """Renders text in a monospaced font; text with any colour of the terminal becomes red."""
    from matplotlib import font_manager
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans Mono"), 16)
    width, height = int(np.ceil(font.getlength("M"))), 20
    lines = _ESCAPE.sub("", text).split("\n")
    size = (width * max(map(len, lines)) + 2 * width, height * (len(lines) + 1))
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    row = column = 0
    for i, part in enumerate(_ESCAPE.split(text)):
        if i % 2:  # An escape code; code 0 resets the colour.
            colour = "black" if part.strip("0;") == "" else "red"
            continue
        colour = "black" if i == 0 else colour
        for letter in part:
            if letter == "\n":
                row, column = row + 1, 0
                continue
            place = (width * (column + 1), height * row + height // 2)
            if colour == "red":
                draw.rectangle((*place, place[0] + width, place[1] + height), fill="mistyrose")
            draw.text(place, letter, fill=colour, font=font)
            column += 1
    return image
