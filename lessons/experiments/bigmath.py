"""How hard are real problems? Solve rates of Big-Math (arXiv:2502.17387): Llama-3.1-8B on 215,608 problems, 64
completions of each.

    rates = load_solve_rates("big_math.csv")     # the real ones, if you have them: a csv, npy or parquet file
    rates = load_solve_rates(download())         # or from the Hugging Face hub
    share = reconstruct()                        # or a stand-in: a RECONSTRUCTION from eleven published numbers

The reconstruction is the distribution of k = 0..64 right completions with the largest entropy among all that agree with
what the identity paper (arXiv:2607.00152, section 7) prints. It is rounded there, so each number is an interval and no
equality. It is not the data: a different histogram with the same eleven numbers is possible, and all but two of
the eleven do not change when right and wrong are exchanged, so they say almost nothing about left against right.
"""

import csv
from pathlib import Path

import numpy as np

from toy_env import UsageError

ANSWERS = 64
PROBLEMS = 215_608
REPOSITORY, FILE = "open-r1/Big-Math-RL-Verified-Processed", "all/train-00000-of-00001.parquet"  # the paper's source
COLUMN = "llama8b_solve_rate"

# What the paper prints, in percent, and half a unit of the last digit that it prints.
NEVER_SOLVED, ALWAYS_SOLVED = (4.0, 0.05), (7.2, 0.05)
SILENT = {4: (59, 0.5), 8: (44, 0.5), 16: (32, 0.5), 32: (23, 0.5), 64: (17, 0.5)}  # by group size
MASS_SHARES = {  # of the total update, at large G: Dr. GRPO's is proportional to p q, GRPO's to sqrt(p q)
    ("Dr. GRPO", "extreme"): (13.9, 0.05),
    ("GRPO", "extreme"): (24.7, 0.05),
    ("Dr. GRPO", "medium"): (22.8, 0.05),
    ("GRPO", "medium"): (17.5, 0.05),
}


def rates() -> np.ndarray:
    """The 65 solve rates there can be: 0, 1/64, ..., 1."""
    return np.arange(ANSWERS + 1) / ANSWERS


def extreme(p) -> np.ndarray:
    """Solve rates below .1 or above .9."""
    return (np.asarray(p) < 0.1) | (np.asarray(p) > 0.9)


def medium(p) -> np.ndarray:
    """Solve rates from .4 to .6."""
    return (np.asarray(p) >= 0.4) & (np.asarray(p) <= 0.6)


def update_size(method: str, p) -> np.ndarray:
    """Expected length of one prompt's update at large G, up to a factor that all prompts share (the paper, Table 3)."""
    variance = np.asarray(p) * (1 - np.asarray(p))
    return variance if method == "Dr. GRPO" else np.sqrt(variance)


def constraints() -> tuple[np.ndarray, np.ndarray]:
    """A (22, 65) and b (22,): `A @ share <= b` says all that was published, two rows a number.

    A share of the update is a quotient, and "at most h" is linear again: mass inside - h * all mass <= 0.
    """
    p, rows, bounds = rates(), [], []

    def between(row, value, half):
        rows.extend([row, -row])
        bounds.extend([(value + half) / 100, -(value - half) / 100])

    between((p == 0).astype(float), *NEVER_SOLVED)
    between((p == 1).astype(float), *ALWAYS_SOLVED)
    for G, published in SILENT.items():
        between(p**G + (1 - p) ** G, *published)
    for (method, region), (value, half) in MASS_SHARES.items():
        mass, inside = update_size(method, p), (extreme if region == "extreme" else medium)(p)
        rows.extend([mass * (inside - (value + half) / 100), -mass * (inside - (value - half) / 100)])
        bounds.extend([0.0, 0.0])
    return np.array(rows), np.array(bounds)


def reconstruct() -> np.ndarray:
    """The share of problems with k of 64 completions right, k = 0..64: (65,), summing to 1. A reconstruction.

    Of all distributions that fulfil `constraints`, the one with the largest entropy. Its form is exp(-mu @ A) up to a
    factor, with one mu >= 0 for every row of A; mu minimises log sum exp(-mu @ A) + mu @ b, which is convex, so that
    Newton steps on the rows that are not stuck at zero find it (Bertsekas, 1982).
    """
    A, b = constraints()
    scale = np.abs(A).max(axis=1)
    A, b = A / scale[:, None], b / scale
    mu = np.zeros(len(b))

    def state(mu):
        exponent = -mu @ A
        weights = np.exp(exponent - exponent.max())
        return weights / weights.sum(), np.log(weights.sum()) + exponent.max() + mu @ b

    for _ in range(500):
        share, value = state(mu)
        gradient = b - A @ share
        free = (mu > 0) | (gradient < 0)
        if np.abs(gradient[free]).max(initial=0) < 1e-9:
            break
        centred = A[free] - (A[free] @ share)[:, None]
        hessian = (centred * share) @ centred.T
        step = np.zeros_like(mu)
        step[free] = -np.linalg.solve(hessian + 1e-9 * np.eye(free.sum()), gradient[free])
        size = 1.0
        while size > 1e-12 and state(np.maximum(mu + size * step, 0))[1] > value - 1e-4 * size * abs(gradient @ step):
            size /= 2
        mu = np.maximum(mu + size * step, 0)
    return share


# ---------------------------------------------------------------------- the real ones


def load_solve_rates(path: str | Path, column: str = COLUMN) -> np.ndarray:
    """Solve rates (n,) between 0 and 1 from a .csv or .parquet file with that column, or an .npy file of numbers.

    Rows without a rate are left out. Raises UsageError if the file or the column is missing, or a number is no rate.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there is no file {path}; give a .csv, .npy or .parquet file with solve rates")
    if path.suffix == ".npy":
        values = np.load(path, allow_pickle=False).astype(float).ravel()
    elif path.suffix == ".csv":
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            _want_column(path, column, reader.fieldnames or [])
            try:
                values = np.array([float(row[column] or "nan") for row in reader])
            except ValueError as error:
                raise UsageError(f"{path}, column {column}: {error}; solve rates are numbers from 0 to 1") from None
    elif path.suffix == ".parquet":
        try:
            from pyarrow import parquet
        except ImportError:
            raise UsageError("reading a .parquet file takes pyarrow: pip install pyarrow") from None
        _want_column(path, column, parquet.read_schema(path).names)
        values = parquet.read_table(path, columns=[column])[column].to_numpy().astype(float)
    else:
        raise UsageError(f"{path} is neither a .csv nor an .npy nor a .parquet file")
    values = values[~np.isnan(values)]
    if len(values) == 0 or values.min() < 0 or values.max() > 1:
        found = f"from {values.min():g} to {values.max():g}" if len(values) else "no number at all"
        raise UsageError(f"{path}: solve rates are numbers from 0 to 1, found {found}")
    return values


def _want_column(path: Path, column: str, columns) -> None:
    if column not in columns:
        raise UsageError(f"{path} has no column {column!r}; choose from {', '.join(columns)}")


def histogram(values) -> np.ndarray:
    """The share of problems at each of the 65 rates, (65,): every rate goes to the nearest k / 64."""
    return np.bincount(np.rint(np.asarray(values) * ANSWERS).astype(int), minlength=ANSWERS + 1) / len(values)


def download() -> Path:
    """Fetch the annotated problems from the Hugging Face hub and return the file. Needs a network."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(REPOSITORY, FILE, repo_type="dataset"))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"could not fetch {FILE} of {REPOSITORY} from the hub ({reason}); get the file by other means "
            "and give its name to load_solve_rates, or go on with reconstruct()"
        ) from None
