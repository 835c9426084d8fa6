"""Everything the lessons share: checks of exercises, sliders, quoted code and diffs, and the look
of the plots."""

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
import torch
from IPython import get_ipython
from IPython.display import Markdown, display
from matplotlib.figure import Figure

from toy_env.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED  # noqa: F401, for the lessons

RIGHT, WRONG = BLUE, RED  # one colour an idea, in all lessons

WITH_SLIDERS = "a picture with sliders"

torch.set_num_threads(1)  # the lessons' tensors are tiny: more threads would wait for each other
matplotlib.rcParams.update(
    {
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
        "axes.titlelocation": "left", "axes.titlesize": 11, "axes.labelsize": 10,
        "lines.linewidth": 2, "legend.frameon": False, "figure.dpi": 100,
    }
)  # fmt: skip

# ---------------------------------------------------------------------- exercises


def check(number: str, answer) -> None:
    """Say whether an answer to exercise `number`, such as "6.2", is right, and if not, which
    mistake it resembles.

    CHECKS["6.2"] in companions/lesson_06.py holds what the answer is compared with:

        expected    the right answer
        inputs      the arguments in their order, by name, one dictionary for each comparison;
                    without inputs, answer and expected are values instead of functions
        mistakes    wrong answers, by the message that is printed for an answer that agrees with one
                    of them, or that raises the same kind of error
        bug         the function as the exercise shows it, where the reader is to repair it

    `...`, None and an unchanged bug mean that the exercise is not attempted. Prints one line and
    raises nothing, so that Run All reaches the end. After a cell that failed, say by a syntax
    error, nothing is judged: the answer is an older one.
    """
    shell = get_ipython()
    if shell and not shell.last_execution_succeeded:
        print("✗ the cell that you ran before this one failed: repair it, run it, then check again")
        return
    print(verdict(answer, **_part(number).CHECKS[number]))


def _part(number: str) -> ModuleType:
    """The module with the checks of exercise `number`."""
    return import_module(f"lessons.workshop.companions.lesson_{int(number.split('.')[0]):02}")


def verdict(
    answer,
    expected,
    inputs: Sequence[dict] | None = None,
    mistakes: dict[str, object] | None = None,
    bug: Callable | None = None,
) -> str:
    """The line that `check` prints, from an entry of CHECKS."""
    got, wanted = outcome(answer, inputs), outcome(expected, inputs)
    if all(value is None or value is ... for value in got):
        return "– not attempted"
    if "Ellipsis" in f"{got}":
        return "✗ not yet: there is still a ... inside"
    if agree(got, wanted):
        return "✓ right"
    if bug is not None and agree(got, outcome(bug, inputs)):
        return "– the bug is still there"
    for message, mistake in (mistakes or {}).items():
        if agree(got, outcome(mistake, inputs)):
            return f"✗ not yet: {message}"
    return f"✗ not yet: {diagnosis(got, wanted, inputs or [{}])}"


def trains(number: str, answer: Callable) -> None:
    """Train something with an answer, and draw its curve over that of the right answer and those of
    mistakes.

    TRAINED["0.1"] in lessons/workshop/companions/lesson_00.py holds

        curve       curve(answer) is a list of numbers, one for each step of the training
        right       the label of the right answer's curve, if it is not "right"
        mistakes    wrong answers, by name
        labels      of the two axes

    An answer that is not attempted, or that raises, has no curve, and a line says so.
    """
    part = _part(number)
    right, training = part.CHECKS[number]["expected"], part.TRAINED[number]
    curve, (x_label, y_label) = training["curve"], training["labels"]
    figure, axis = new_figure(7, 3)
    label = training.get("right", "right")
    axis.plot(curve(right), color=RIGHT, linewidth=5, alpha=0.35, label=label)
    for (name, mistake), color in zip(training["mistakes"].items(), (WRONG, ORANGE, PURPLE, GREEN)):
        axis.plot(curve(mistake), color=color, linewidth=1.3, label=name)
    try:
        axis.plot(curve(answer), color="black", linewidth=1.8, linestyle="--", label="yours")
    except Exception as error:
        attempted = "ellipsis" not in str(error).lower()
        reason = f"{type(error).__name__}: {error}" if attempted else "not attempted"
        print(f"(no curve of yours: {reason})")
    axis.set(xlabel=x_label, ylabel=y_label)
    axis.legend(fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    show(figure)


def outcome(answer, inputs: Sequence[dict] | None) -> list:
    """The values of a function at the inputs, up to the first error that it raises, which is then
    the last of them; without inputs, the value itself."""
    if inputs is None:
        return [answer]
    values = []
    for arguments in inputs:
        try:
            values.append(answer(*copy.deepcopy(arguments).values()))
        except Exception as error:
            return [*values, error]
    return values


def agree(got: list, wanted: list) -> bool:
    """True for equal values, and where both end in an error of one kind."""
    if isinstance(got[-1], Exception) or isinstance(wanted[-1], Exception):
        return type(got[-1]) is type(wanted[-1])
    return not any(_difference(*pair, {}) for pair in zip(got, wanted))


def diagnosis(got: list, wanted: list, inputs: Sequence[dict]) -> str:
    """One line on how the values differ from the right ones: by an error, by a pattern, or at which
    input and in which place."""
    if isinstance(error := got[-1], Exception):
        return f"your code raised {type(error).__name__}: {error}{_at(inputs[len(got) - 1])}"
    if pattern := _pattern(got, wanted):
        return pattern
    differences = list(map(_difference, got, wanted, inputs))
    wrong = [i for i, difference in enumerate(differences) if difference]
    text = differences[wrong[0]]
    if len(wrong) == len(got):
        return text
    return f"right at {len(got) - len(wrong)} of {len(got)} inputs, but {text}"


def _pattern(got: list, wanted: list) -> str:
    """How all values differ: by sign, rounding, order, factor or constant; empty if in none of
    these ways."""
    found, right = (list(map(_numbers, values)) for values in (got, wanted))
    if any(array is None for array in (*found, *right)):
        return ""
    if [array.shape for array in found] != [array.shape for array in right]:
        return ""
    one, other, reversed_ = (
        np.concatenate([array.ravel() for array in arrays])
        for arrays in (found, right, [np.atleast_1d(array)[..., ::-1] for array in right])
    )
    if np.allclose(one, -other):
        return "the sign is turned"
    if np.allclose(one, other, rtol=0.01, atol=0):
        return "nearly right, to 1 %: something is rounded or approximated"
    # no pattern of zeros alone, nor of too few values to tell patterns apart
    if not one.any() or len(np.unique(abs(other[other != 0]))) < 2:
        return ""
    factor, gap = one @ other / (other @ other), one[0] - other[0]
    patterns = {
        "the order is reversed": reversed_,
        f"every value is {factor:.4g} times the right one": factor * other,
        "each is 1 minus the right value": 1 - other,
        f"every value is off by {gap:.4g}": other + gap,
    }
    return next((said for said, values in patterns.items() if np.allclose(one, values)), "")


def _difference(answer, truth, arguments: dict) -> str:
    """What is not right (to 1e-6), in which place and at which arguments, without the right value;
    empty if all is right. Of a table with a row for each row of the answer, only that of the place
    is shown."""
    if isinstance(answer, str) and answer.strip().lower() == str(truth).strip().lower():
        return ""
    numbers, truth = _numbers(answer), _numbers(truth)
    if numbers is None or truth is None:
        return f"{_text(answer)} is not right{_at(arguments)}"
    if numbers.shape != truth.shape:
        return f"a value of shape {numbers.shape} where one of shape {truth.shape} is wanted"
    wrong = ~np.isclose(numbers, truth, rtol=1e-6, atol=1e-6, equal_nan=True)
    if not wrong.any():
        return ""
    place, where, shown = tuple(np.argwhere(wrong)[0].tolist()), "", {}
    if place:
        where = f" in place {place}"
    if 1 < wrong.sum() < wrong.size:
        where += f" ({wrong.sum()} of {wrong.size} are wrong)"
    for name, value in arguments.items():
        if place and np.ndim(_numbers(value)) > 1 and len(value) == len(truth):
            name, value = f"{name}[{place[0]}]", value[place[0]]
        shown[name] = value
    return f"{numbers[place]:.4g}{where} is not right{_at(shown)}"


def _array(value) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _numbers(value) -> np.ndarray | None:
    """A number, array or tensor as floats; None for anything else."""
    try:
        return None if isinstance(value, str) else _array(value).astype(float)
    except (TypeError, ValueError):
        return None


def _at(arguments: dict) -> str:
    """The arguments as the end of a sentence."""
    texts = [f"{name} = {_text(value)}" for name, value in arguments.items()]
    return f" for {', '.join(texts)}" if texts else ""


def _text(value) -> str:
    try:
        text = np.array2string(_array(value), precision=4, separator=", ", threshold=200)
    except Exception:  # it is no array, such as lists of several lengths
        return repr(value)
    return " ".join(text.split())


# ---------------------------------------------------------------------- sliders


def knob(
    draw: Callable[..., Figure], **sliders: tuple[float, float, float, float] | Sequence
) -> None:
    """A picture with sliders: `draw(**values)` returns a Figure, and is called again whenever a
    slider is moved.

    A slider is name=(lowest, highest, step, start), or name=[choices], which starts at the first.
    The sliders are one output and the picture is another: a widget lives only as long as its
    kernel, so a lesson that is saved and opened again shows them without life (the settings in
    `jupyter` have JupyterLab save their state; without it an error stands in their place), and
    GitHub and the site show the picture alone.
    """
    choices = {name: positions(spec) for name, spec in sliders.items()}
    import ipywidgets

    widgets = {
        name: ipywidgets.SelectionSlider(
            options=values, value=values[start], description=name, layout={"width": "580px"}
        )
        for name, (values, start) in choices.items()
    }

    def picture() -> dict:
        values = {name: widget.value for name, widget in widgets.items()}
        return _image(draw(**values), WITH_SLIDERS)

    start = picture()  # outside a notebook too, so that tests draw it
    if get_ipython() is None:
        return
    display(ipywidgets.VBox(list(widgets.values())))
    output = display(start, raw=True, display_id=True)
    # While a picture is drawn, ipywidgets' page keeps back all moves of a slider but the last.
    for widget in widgets.values():
        widget.observe(lambda _: output.update(picture(), raw=True), names="value")


def positions(spec: tuple | Sequence) -> tuple[list, int]:
    """The values of a slider as `knob` takes it, from left to right, and the number of the one that
    it starts at. Choices that are numbers ascend."""
    if isinstance(spec, tuple):
        low, high, step, start = spec
        values = [round(low + i * step, 10) for i in range(round((high - low) / step) + 1)]
        return values, values.index(start)
    values = list(spec) if isinstance(spec[0], str) else sorted(spec)
    return values, values.index(spec[0])


def show(figure: Figure) -> None:
    """Put a figure below the cell."""
    image = _image(figure, "a figure")
    if get_ipython() is not None:
        display(image, raw=True)


def _image(figure: Figure, text: str) -> dict:
    """A figure for `display`, with a text for places without pictures."""
    return {"image/png": base64.b64encode(png(figure)).decode(), "text/plain": text}


def png(figure: Figure) -> bytes:
    """A figure as a PNG file, the same bytes for the same figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100, bbox_inches="tight", metadata={"Software": None})
    return file.getvalue()


def new_figure(width: float, height: float, columns: int = 1, **settings):
    """A figure and its axes: one, or an array of `columns`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns, **settings)


def ticks(axis, values: Sequence) -> None:
    """Ticks of an x or y axis at these values alone: numbers, or texts such as ".5"."""
    axis.set_ticks([float(value) for value in values], [str(value) for value in values])
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
    """A text with each {=expression} replaced by its value, formatted as in an f-string: {=x:.2f};
    {=x:.0%} gives 36 %.

    An expression may not contain a closing brace, nor both kinds of quotation marks. Its errors are
    raised.
    """

    def value(match: re.Match) -> str:
        text = eval("f" + repr("{" + match[1] + "}"), names)
        return re.sub(r"(?<=\d)%", " %", text)

    return re.sub(r"\{=(.+?)\}", value, template, flags=re.DOTALL)


def say(text: str) -> None:
    """Put Markdown below the cell: quoted code, or a text with numbers that the code has just
    computed."""
    if get_ipython() is not None:
        display(Markdown(text))
