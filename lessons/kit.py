"""What the lessons share: checks for exercises, sliders, quoted code and diffs, and the look of the
plots."""

import ast
import asyncio
import base64
import copy
import difflib
import inspect
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from itertools import takewhile
from types import ModuleType

import matplotlib
import numpy as np
from IPython import get_ipython
from IPython.display import Markdown, display
from matplotlib.figure import Figure

from lessons.site import sources
from toy_env.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED  # noqa: F401, which lessons import from here

RIGHT, WRONG = BLUE, RED  # one colour an idea, in all lessons

WIDGET = "application/vnd.jupyter.widget-view+json"
WITH_SLIDERS = "a picture with sliders"

matplotlib.rcParams.update(
    {
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
        "axes.titlelocation": "left", "axes.titlesize": 11, "axes.labelsize": 10, "lines.linewidth": 2,
        "legend.frameon": False, "figure.dpi": 100,
    }
)  # fmt: skip

# ---------------------------------------------------------------------- exercises


def check(number: str, answer) -> None:
    """Say whether an answer to exercise `number`, such as "6.2", is right, and if not, which
    mistake it resembles.

    CHECKS["6.2"] in lessons/checks/lesson_06.py holds what the answer is compared with:

        expected    the right answer
        inputs      the arguments in their order, by name, one dictionary for each comparison; without inputs, answer
                    and expected are values instead of functions

    An answer that agrees with a wrong one in the lesson's source, or raises the same kind of error,
    gets its message. `...`, None and an unchanged bug mean that the exercise is not attempted.
    Prints one line and raises nothing, so that Run All reaches the end. After a cell that failed,
    say by a syntax error, nothing is judged: the answer is an older one.
    """
    if (shell := get_ipython()) and not shell.last_execution_succeeded:
        return print(
            "✗ the cell that you ran before this one failed: repair it, run it, then check again"
        )
    exercise = import_module(f"lessons.checks.lesson_{int(number.split('.')[0]):02}").CHECKS[number]
    judge(answer, **exercise, mistakes=mistakes_in(number, sys._getframe(1).f_globals))


def mistakes_in(number: str, names: dict) -> Iterator[tuple[str, object]]:
    """The exercise as it stands, without a message, and the wrong answers in its lesson's source,
    cells [wrong], with theirs: what `check` is given then. names: what the cells of the lesson have
    defined."""
    cells = sources.read_cells(*sources.find_sources([int(number.split(".")[0])]))
    at = next(
        i for i, cell in enumerate(cells) if cell.kind == "check" and f'"{number}"' in cell.text
    )
    judged = compile(
        ast.Expression(ast.parse(cells[at].text).body[-1].value.args[1]), "<check>", "eval"
    )
    others = takewhile(lambda cell: cell.kind != "exercise", cells[at:])
    for cell in (cells[at - 1], *(cell for cell in others if cell.kind == "wrong")):
        scope = dict(names)
        with suppress(
            Exception
        ):  # where the reader has not run, or has changed, what a wrong answer needs
            with redirect_stdout(io.StringIO()):
                exec(cell.text, scope)
            yield cell.note, eval(judged, scope)


def judge(answer, expected, inputs: Sequence[dict] | None = None, mistakes: Iterable = ()) -> None:
    """`check`, given the entry of CHECKS, and pairs of a message and a mistake; without a message
    it is the bug."""

    def outcome(function) -> list | Exception:
        """The values at all inputs, or the error that was raised."""
        try:
            return (
                [function]
                if inputs is None
                else [function(*copy.deepcopy(x).values()) for x in inputs]
            )
        except Exception as error:
            return error

    def agrees(other) -> bool:
        theirs = outcome(other)
        if raised or isinstance(theirs, Exception):
            return type(values) is type(theirs) is not NameError
        return not any(_difference(*pair) for pair in zip(values, theirs))

    values = outcome(answer)
    raised = isinstance(values, Exception)
    if not raised and all(value is None or value is ... for value in values):
        return print("– not attempted")
    if agrees(expected):
        return print("✓ right")
    for message, mistake in mistakes:
        if agrees(mistake) and (message or not raised):
            return print("✗ not yet:", message) if message else print("– the bug is still there")
    if raised:
        return print(f"✗ not yet: your code raised {type(values).__name__}: {values}")
    differences = [_difference(*pair) for pair in zip(values, outcome(expected))]
    wrong = next(i for i, difference in enumerate(differences) if difference)
    print(
        "✗ not yet:",
        differences[wrong] + (f" for {_text(inputs[wrong])}" if inputs is not None else ""),
    )


def _array(value) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _numbers(value) -> np.ndarray | None:
    """A number, array or tensor as floats; None for anything else."""
    try:
        return None if isinstance(value, str) else _array(value).astype(float)
    except (TypeError, ValueError):
        return None


def _difference(answer, truth) -> str:
    """One place where an answer is not right (to 1e-6), without the right value; empty if all are
    right."""
    if isinstance(answer, str) and answer.strip().lower() == str(truth).strip().lower():
        return ""
    numbers, truth = _numbers(answer), _numbers(truth)
    if numbers is None or truth is None:
        return f"{_text(answer)} is not right"
    if numbers.shape != truth.shape:
        return f"a value of shape {numbers.shape} where one of shape {truth.shape} is wanted"
    wrong = np.argwhere(~np.isclose(numbers, truth, rtol=1e-6, atol=1e-6, equal_nan=True)).tolist()
    place = tuple(wrong[0]) if wrong else ()
    return (
        f"{numbers[place]:.4g}{f' in place {place}' if place else ''} is not right" if wrong else ""
    )


def _text(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {_text(item)}" for name, item in value.items())
    if isinstance(value, str) or value is None or value is ...:
        return repr(value)
    try:
        return np.array2string(
            _array(value), precision=4, separator=", ", threshold=12, edgeitems=2
        )
    except Exception:
        return repr(value)


# ---------------------------------------------------------------------- sliders

# lessons/site/drawn.py sets it, to draw the site's pictures: it takes a function that draws, and its sliders by name.
recorder: Callable[[Callable[..., Figure], dict], None] | None = None
narrow = False  # draw for a phone: 3.9 inches wide, panels below each other


def knob(
    draw: Callable[..., Figure], **sliders: tuple[float, float, float, float] | Sequence
) -> None:
    """A picture with sliders: `draw(**values)` returns a Figure, and is called again whenever a
    slider is moved.

    A slider is name=(lowest, highest, step, start), or name=[choices], which starts at the first.
    The sliders are one output and the picture is another: a widget lives only as long as its
    kernel, so a lesson that is saved and opened again shows them without life (lessons/jupyter has
    JupyterLab save their state; without it an error stands in their place), and GitHub shows the
    picture alone. On the site (lessons/site/drawn.py) each position is a picture.
    """
    if recorder:
        return recorder(draw, sliders)
    import ipywidgets

    widgets = {}
    for name, spec in sliders.items():
        settings = {
            "description": name,
            "layout": ipywidgets.Layout(width="580px"),
        }  # a track of about 400
        if isinstance(spec, tuple):
            low, high, step, start = spec
            kind = (
                ipywidgets.IntSlider
                if all(isinstance(v, int) for v in spec)
                else ipywidgets.FloatSlider
            )
            widgets[name] = kind(min=low, max=high, step=step, value=start, **settings)
        else:
            kind = ipywidgets.Dropdown if isinstance(spec[0], str) else ipywidgets.SelectionSlider
            widgets[name] = kind(options=in_order(spec), value=spec[0], **settings)

    def picture() -> dict:
        return _image(
            draw(**{name: widget.value for name, widget in widgets.items()}), WITH_SLIDERS
        )

    box = ipywidgets.VBox(list(widgets.values()))
    view = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
    start = picture()  # without a notebook too: a test wants to know whether it can be drawn
    if get_ipython() is None:
        return
    display({WIDGET: view, "text/plain": f"sliders: {', '.join(sliders)}"}, raw=True)
    output = display(start, raw=True, display_id=box.model_id)
    waiting: list[asyncio.TimerHandle] = []

    def moved(_) -> None:
        """Draw when no further move is waiting, so that the picture keeps up with a slider that is
        dragged."""
        while waiting:
            waiting.pop().cancel()
        waiting.append(
            asyncio.get_running_loop().call_later(0.01, lambda: output.update(picture(), raw=True))
        )

    for widget in widgets.values():
        widget.observe(moved, names="value")


def in_order(choices: Sequence) -> list:
    """The choices of a slider from left to right: numbers ascending, texts as they are."""
    return list(choices) if isinstance(choices[0], str) else sorted(choices)


def show(figure: Figure) -> None:
    """Put a figure below the cell."""
    if recorder:
        return recorder(lambda: figure, {})
    image = _image(figure, "a figure")
    if get_ipython() is not None:
        display(image, raw=True)


def _image(figure: Figure, text: str) -> dict:
    """What `display` shows: a picture, or the text where there are no pictures."""
    return {"image/png": base64.b64encode(png(figure)).decode(), "text/plain": text}


def png(figure: Figure) -> bytes:
    """A figure as a PNG file, the same bytes for the same figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100, bbox_inches="tight", metadata={"Software": None})
    return file.getvalue()


def new_figure(
    width: float = 7.0, height: float = 3.4, columns: int = 1, fixed: bool = False, **settings
):
    """A figure and its axes: one, or an array of `columns`. A narrow figure has them below each
    other, unless it is `fixed`: then it keeps its width and is scrolled."""
    rows = 1
    if narrow and not fixed:
        rows, columns, width, height = (
            columns,
            1,
            3.9,
            {1: height, 2: 2 * 2.7}.get(columns, 1.8 * columns),
        )
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **settings)


def ticks(axis, values: Sequence[float], labels: Sequence[str] = ()) -> None:
    """Ticks of an x or y axis at these values alone."""
    axis.set_ticks(values, labels or [f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


def label_line(axis, x: float, y: float, text: str, color: str, **settings) -> None:
    """A direct label beside a line, in its colour."""
    axis.annotate(text, (x, y), color=color, fontsize=10, textcoords="offset points",
                  **({"xytext": (5, 0), "va": "center"} | settings))  # fmt: skip


# ---------------------------------------------------------------------- quoted code


def _path(part: ModuleType | Callable) -> str:
    return inspect.getmodule(part).__name__.replace(".", "/") + ".py"


def show_source(function: Callable) -> None:
    """Quote a function of the repository as it stands."""
    say(f"`{_path(function)}`\n```python\n{inspect.getsource(function)}```")


def show_diff(before: ModuleType | Callable, after: ModuleType | Callable) -> None:
    """The unified diff of two scripts, or of two of their functions, including docstrings."""
    code = (inspect.getsource(part).splitlines() for part in (before, after))
    lines = difflib.unified_diff(*code, _path(before), _path(after), n=1, lineterm="")
    say("```diff\n" + "\n".join(lines) + "\n```")


def fill(template: str, names: dict) -> str:
    """A text with each {=expression} replaced by its value, formatted as in an f-string: {=x:.2f}.

    An expression may not contain a closing brace, nor both kinds of quotation marks. Its errors are
    raised.
    """
    return re.sub(
        r"\{=(.+?)\}",
        lambda match: eval("f" + repr("{" + match[1] + "}"), names),
        template,
        flags=re.DOTALL,
    )


def say(text: str) -> None:
    """Put Markdown below the cell: quoted code, or a text with numbers that the code has just
    computed."""
    if get_ipython() is not None:
        display(Markdown(text))
