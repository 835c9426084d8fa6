"""What the lessons share: checks for exercises, sliders, quoted code and diffs, and the look of the plots."""

import asyncio
import base64
import copy
import difflib
import inspect
import io
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

import matplotlib
import numpy as np
from IPython import get_ipython
from IPython.display import Markdown, display
from matplotlib.figure import Figure

from toy_env.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED  # noqa: F401, which lessons import from here

RIGHT, WRONG = BLUE, RED  # one colour an idea, in all lessons

WIDGET = "application/vnd.jupyter.widget-view+json"

matplotlib.rcParams.update(
    {
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
        "axes.titlelocation": "left", "axes.titlesize": 11, "axes.labelsize": 10, "lines.linewidth": 2,
        "legend.frameon": False, "figure.dpi": 100,
    }
)  # fmt: skip

# ---------------------------------------------------------------------- exercises

verdicts: list[bool | None] = []  # of every check so far: right, wrong, or None for not attempted


def check(number: str, answer) -> None:
    """Say whether an answer to exercise `number`, such as "6.2", is right, and if not, which mistake it looks like.

    What it is compared with is CHECKS["6.2"] in lessons/checks/lesson_06.py:

        expected    the truth
        inputs      the keyword arguments it is compared at, each a dictionary; without inputs, answer, expected, bug
                    and mistakes are values and not functions
        mistakes    what the reader is told when the answer agrees with a mistake, or raises the same kind of error
        bug         what a stub that is to be repaired returns as it stands
        tolerance   within which arrays, tensors and numbers agree; 1e-6 if it is not given

    `...`, None and the bug are an exercise not attempted. Prints one line and raises nothing, so that Run All ends.
    """
    exercise = import_module(f"lessons.checks.lesson_{int(number.split('.')[0]):02}").CHECKS[number]
    judge(answer, **exercise)


def judge(
    answer,
    expected,
    inputs: Sequence[dict] | None = None,
    mistakes: dict[str, object] | None = None,
    tolerance: float = 1e-6,
    bug=None,
) -> None:
    """`check` against what is given here."""

    def values(of) -> list:
        return [of(**copy.deepcopy(given)) for given in inputs] if inputs is not None else [of]

    def outcome(of) -> list | Exception:
        try:
            return values(of)
        except Exception as error:
            return error

    def agrees(ours: list | Exception, theirs: list | Exception) -> bool:
        if isinstance(ours, Exception) or isinstance(theirs, Exception):
            return type(ours) is type(theirs)
        return all(_same(a, b, tolerance) for a, b in zip(ours, theirs))

    given, truth = outcome(answer), values(expected)
    if not isinstance(given, Exception):
        if all(value is None or value is ... for value in given):
            return _say(None, "not attempted")
        if agrees(given, truth):
            return _say(True, "right")
    if bug is not None and agrees(given, outcome(bug)):
        return _say(None, "the bug is still there")
    for message, mistake in (mistakes or {}).items():
        if agrees(given, outcome(mistake)):
            return _say(False, message)
    if isinstance(given, Exception):
        return _say(False, f"your code raised {type(given).__name__}: {given}")
    i = next(i for i, pair in enumerate(zip(given, truth)) if not _same(*pair, tolerance))
    case = f" for {_text(inputs[i])}" if inputs is not None else ""
    _say(False, f"{_difference(given[i], truth[i], tolerance)}{case}")


def _difference(ours, truth, tolerance: float) -> str:
    """One place where an answer is not right, without the right one."""
    try:
        ours, truth = _array(ours).astype(float), _array(truth).astype(float)
    except (TypeError, ValueError):
        return f"{_text(ours)} is not right"
    if ours.shape != truth.shape:
        return f"a value of shape {ours.shape} where one of shape {truth.shape} is wanted"
    at = np.argwhere(~np.isclose(ours, truth, rtol=tolerance, atol=tolerance, equal_nan=True))[0]
    where = f" in place {tuple(at.tolist())}" if len(at) else ""
    return f"{ours[tuple(at)]:.4g}{where} is not right"


def _say(verdict: bool | None, message: str) -> None:
    verdicts.append(verdict)
    print({True: "✓ ", False: "✗ not yet: ", None: "– "}[verdict] + message)


def _array(value) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _same(ours, truth, tolerance: float) -> bool:
    if isinstance(truth, str) or isinstance(ours, str):
        return isinstance(ours, str) and ours.strip().lower() == str(truth).strip().lower()
    try:
        ours, truth = _array(ours).astype(float), _array(truth).astype(float)
    except (TypeError, ValueError):
        return False
    return ours.shape == truth.shape and np.allclose(ours, truth, rtol=tolerance, atol=tolerance, equal_nan=True)


def _text(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {_text(item)}" for name, item in value.items())
    if isinstance(value, str) or value is None or value is ...:
        return repr(value)
    try:
        return np.array2string(_array(value), precision=4, separator=", ", threshold=12, edgeitems=2)
    except Exception:
        return repr(value)


# ---------------------------------------------------------------------- sliders

# lessons/drawn.py takes every picture with this, for the web: a function that draws it, and its sliders by name.
recorder: Callable[[Callable[..., Figure], dict], None] | None = None
narrow = False  # draw for a phone: 3.9 inches, panels below each other


def knob(draw: Callable[..., Figure], **sliders: tuple[float, float, float, float] | Sequence) -> None:
    """A picture with sliders: `draw(**values)` returns a Figure and is called anew whenever one is moved.

    A slider is name=(lowest, highest, step, start), or name=[choices], which starts at the first. The sliders are one
    output and the picture is another: a widget lives only as long as its kernel, so a lesson that is saved and opened
    again, or read on GitHub, shows the picture without them. On the web (lessons/drawn.py) each position is a picture.
    """
    if recorder:
        return recorder(draw, sliders)
    import ipywidgets

    widgets = {}
    for name, spec in sliders.items():
        title = {"description": name, "layout": ipywidgets.Layout(width="580px")}  # a track of about 400
        if isinstance(spec, tuple):
            low, high, step, start = spec
            kind = ipywidgets.IntSlider if all(isinstance(v, int) for v in spec) else ipywidgets.FloatSlider
            widgets[name] = kind(min=low, max=high, step=step, value=start, **title)
        else:
            widgets[name] = ipywidgets.SelectionSlider(options=list(spec), **title)

    def picture() -> dict:
        return _image(draw(**{name: widget.value for name, widget in widgets.items()}), "a picture with sliders")

    box = ipywidgets.VBox(list(widgets.values()))
    view = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
    start = picture()  # drawn without a notebook too: a test wants to know whether it can be
    if get_ipython() is None:
        return
    display({WIDGET: view, "text/plain": f"sliders: {', '.join(sliders)}"}, raw=True)
    shown = display(start, raw=True, display_id=box.model_id)
    waiting: list[asyncio.TimerHandle] = []

    def moved(_) -> None:
        """Draw when no further move is waiting, so that the picture keeps up with a slider that is dragged."""
        while waiting:
            waiting.pop().cancel()
        waiting.append(asyncio.get_running_loop().call_later(0.01, lambda: shown.update(picture(), raw=True)))

    for widget in widgets.values():
        widget.observe(moved, names="value")


def _image(figure: Figure, text: str) -> dict:
    """What `display` shows as a picture, with a text for where there are none."""
    return {"image/png": base64.b64encode(png(figure)).decode(), "text/plain": text}


def png(figure: Figure) -> bytes:
    """A figure as a PNG file, the same bytes for the same figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100, bbox_inches="tight", metadata={"Software": None})
    return file.getvalue()


def show(figure: Figure) -> None:
    """Put a figure under the cell."""
    if recorder:
        return recorder(lambda: figure, {})
    data = _image(figure, "a figure")
    if get_ipython() is not None:
        display(data, raw=True)


def new_figure(width: float = 7.0, height: float = 3.4, columns: int = 1, fixed: bool = False, **settings):
    """A figure and its axes (one, or an array of `columns`; below each other if it is narrow, but one that is `fixed`
    keeps its width, and is scrolled)."""
    if fixed or not narrow:
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(1, columns, **settings)
    rows, one = columns, {1: height, 2: 2.7}.get(columns, 1.8)
    figure = Figure(figsize=(3.9, rows * one), layout="constrained")
    return figure, figure.subplots(rows, 1, **settings)


def label_line(axis, x: float, y: float, text: str, color: str, **settings) -> None:
    """A direct label beside a line, in its colour."""
    axis.annotate(text, (x, y), color=color, fontsize=10, textcoords="offset points",
                  **({"xytext": (5, 0), "va": "center"} | settings))  # fmt: skip


# ---------------------------------------------------------------------- quoted code


def show_source(function: Callable) -> None:
    """Quote a function of the repository as it stands."""
    where = f"`{inspect.getmodule(function).__name__.replace('.', '/')}.py`"
    say(f"{where}\n```python\n{inspect.getsource(function)}```")


def show_diff(before: ModuleType | Callable, after: ModuleType | Callable) -> None:
    """The unified diff of two scripts, or of two functions of them, docstrings and all."""

    def name(of) -> str:
        module = inspect.getmodule(of)
        return module.__name__.replace(".", "/") + ".py"

    sources = (inspect.getsource(part).splitlines() for part in (before, after))
    lines = difflib.unified_diff(*sources, name(before), name(after), n=1, lineterm="")
    say("```diff\n" + "\n".join(lines) + "\n```")


def fill(template: str, names: dict) -> str:
    """A text with each {=expression} replaced by its value, formatted as in an f-string: {=x:.2f}.

    An expression holds no closing brace and one kind of quotation marks. Raises what the expression raises.
    """
    return re.sub(r"\{=(.+?)\}", lambda match: eval("f" + repr("{" + match[1] + "}"), names), template, flags=re.DOTALL)


def say(text: str) -> None:
    """Put Markdown under the cell: quoted code, or a text whose numbers the code has just found."""
    if get_ipython() is not None:
        display(Markdown(text))
