"""What the lessons share: checks for exercises, sliders, quoted code and diffs, and the look of the plots."""

import base64
import difflib
import inspect
import io
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from types import ModuleType

import matplotlib
import numpy as np
from IPython import get_ipython
from IPython.display import Markdown, display
from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart. One colour an idea, in all lessons.
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#777777"
RIGHT, WRONG = BLUE, RED

matplotlib.rcParams.update(
    {
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
        "axes.titlelocation": "left", "axes.titlesize": 11, "axes.labelsize": 10, "lines.linewidth": 2,
        "legend.frameon": False, "figure.dpi": 100,
    }
)  # fmt: skip

# ---------------------------------------------------------------------- exercises

verdicts: list[bool | None] = []  # of every check so far: right, wrong, or None for not attempted


def check(
    answer,
    expected,
    inputs: Sequence[dict] | None = None,
    mistakes: dict[str, object] | None = None,
    tolerance: float = 1e-6,
) -> None:
    """Say whether an exercise is solved, and if not, which mistake it looks like.

    answer, expected and the values of `mistakes` are all of one kind: functions of the keyword arguments in `inputs`,
    or, without inputs, values. Arrays, tensors and numbers are compared within `tolerance`. The keys of `mistakes` are
    what the reader is told when the answer agrees with that mistake. `...` or None is an exercise not attempted. Prints
    one line and never raises, so that Run All always ends.
    """

    def values(of) -> list:
        return [of(**given) for given in inputs] if inputs is not None else [of]

    try:
        given = values(answer)
    except Exception as error:
        return _say(False, f"your code raised {type(error).__name__}: {error}")
    if all(value is None or value is ... for value in given):
        return _say(None, "not attempted")
    for i, (ours, truth) in enumerate(zip_longest(given, values(expected))):
        if not _same(ours, truth, tolerance):
            for message, mistake in (mistakes or {}).items():
                if all(_same(a, b, tolerance) for a, b in zip(given, values(mistake))):
                    return _say(False, message)
            case = f" for {_text(inputs[i])}" if inputs is not None else ""
            return _say(False, f"got {_text(ours)}, expected {_text(truth)}{case}")
    _say(True, "right")


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
        return np.array2string(_array(value), precision=4, separator=", ", threshold=20)
    except Exception:
        return repr(value)


# ---------------------------------------------------------------------- sliders


def knob(draw: Callable[..., Figure], **sliders: tuple[float, float, float, float] | Sequence) -> None:
    """A picture with sliders: `draw(**values)` returns a Figure and is called anew whenever one is moved.

    A slider is name=(lowest, highest, step, start), or name=[choices], which starts at the first. In JupyterLab the
    sliders move; everywhere else (GitHub, HTML) the reader sees the picture of the start. One output holds both.
    """
    import ipywidgets

    widgets = {}
    for name, spec in sliders.items():
        title = {"description": name, "continuous_update": False}
        if isinstance(spec, tuple):
            low, high, step, start = spec
            kind = ipywidgets.IntSlider if all(isinstance(v, int) for v in spec) else ipywidgets.FloatSlider
            widgets[name] = kind(min=low, max=high, step=step, value=start, **title)
        else:
            widgets[name] = ipywidgets.Dropdown(options=list(spec), description=name)

    def picture() -> bytes:
        return png(draw(**{name: widget.value for name, widget in widgets.items()}))

    image = ipywidgets.Image(value=picture(), format="png")

    def redraw(_) -> None:
        image.value = picture()

    for widget in widgets.values():
        widget.observe(redraw, names="value")
    box = ipywidgets.VBox([*widgets.values(), image])
    bundle = {
        "application/vnd.jupyter.widget-view+json": {"version_major": 2, "version_minor": 0, "model_id": box.model_id},
        "image/png": base64.b64encode(image.value).decode(),
        "text/plain": f"a picture with sliders for {', '.join(sliders)}",
    }
    if get_ipython() is not None:
        display(bundle, raw=True)


def png(figure: Figure) -> bytes:
    """A figure as a PNG file, the same bytes for the same figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100, bbox_inches="tight", metadata={"Software": None})
    return file.getvalue()


def show(figure: Figure) -> None:
    """Put a figure under the cell."""
    data = base64.b64encode(png(figure)).decode()
    if get_ipython() is not None:
        display({"image/png": data, "text/plain": "a figure"}, raw=True)


def new_figure(width: float = 7.0, height: float = 3.4, columns: int = 1, **settings):
    """A figure and its axes (one, or an array of `columns`)."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns, **settings)


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
