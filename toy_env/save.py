"""A run's folder, whose files README.md lists: one writer at a time, files whole or absent, saves
with a checksum."""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import UnpicklingError

import torch
from filelock import FileLock, Timeout

from toy_env import Diverged, RunFailed, UsageError, reason, system_error

MAY_CHANGE_ON_RESUME = {
    "steps",
    "device",
    "save_every",
    "max_tokens_per_pass",
    "gradient_checkpointing",
}
LEFT_BEHIND = {"lock", "write.tmp"}  # by a run that was stopped before its first file


class RunFolder:
    """A run's folder: run_dir, or a new one of this name in runs/. This process holds it until
    `release`. Raises UsageError if it cannot have it, and RunFailed if a write fails later."""

    def __init__(self, run_dir: str, name: str) -> None:
        try:
            run_dir.encode()  # the library that writes the checkpoint takes only names in UTF-8
            self.path = make_folder(run_dir, name)
            self.lock = FileLock(
                self.path / "lock", is_singleton=True
            )  # a second run of this process may take it over
            self.lock.acquire(timeout=0)
        except (OSError, UnicodeError) as error:
            why = (
                "another process is writing there" if isinstance(error, Timeout) else reason(error)
            )
            where = run_dir or f"runs/{name}"
            raise UsageError(
                f"cannot use the run folder {where!r} ({why}); choose another --run_dir"
            ) from None
        self.rows: list[dict] = []  # of metrics.jsonl

    def release(self) -> None:
        """Let another process write here. The system does so too when this process ends, however it
        ends."""
        self.lock.release(force=True)

    def write(self, name: str, content: str | Callable[[Path], None]) -> None:
        """Write a text, or the file or folder that content(path) makes, which takes its `name` once
        it is on the disk: a write that is cut short changes nothing. "{digest}" in the name becomes
        the file's checksum."""
        with writing(self.path / name.replace("-{digest}", "")) as temporary:
            if isinstance(content, str):
                temporary.write_text(content, encoding="utf-8", errors="replace")
            else:
                content(temporary)
            for path in temporary.iterdir() if temporary.is_dir() else [temporary]:
                with path.open("r+b") as file:
                    os.fsync(file.fileno())
            path = self.path / (
                name.replace("{digest}", digest(temporary)) if "{digest}" in name else name
            )
            shutil.rmtree(
                path, ignore_errors=True
            )  # does nothing to a file, which is replaced in one step
            os.replace(temporary, path)

    def write_json(self, name: str, value) -> None:
        self.write(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def append_row(self, row: dict) -> None:
        """Add a row to metrics.jsonl."""
        with writing(path := self.path / "metrics.jsonl"), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        self.rows.append(row)

    def save(self, state: dict) -> None:
        """Save `state`, which holds its "step", with the rows so far. Raises Diverged if a tensor
        is not finite."""
        if name := not_finite(state):
            raise Diverged(f"{name} is not finite after step {state['step']}, so it is not saved")

        def write_state(path: Path) -> None:
            with path.open("wb") as file:  # given a path, torch hides what the system says
                torch.save(state | {"metrics": self.rows}, file)

        self.write(f"state-{state['step']:06d}-{{digest}}.pt", write_state)
        for old in saves(self.path)[2:]:  # two are kept
            old.unlink()

    def load(self, settings: dict, modules: dict, device) -> tuple[dict | None, list[str]]:
        """Load the newest whole save into `modules`; changes nothing on the disk. Returns the save,
        or None if the run was stopped before its first, and lines to print. Raises UsageError if no
        save is whole, or if it was made under other `settings`."""
        where = repr(str(self.path))
        state, notes = newest_save(self.path, device)
        if state is None and set(os.listdir(self.path)) <= LEFT_BEHIND | {"config.json"}:
            return None, []
        if state is None:
            raise UsageError(
                "; ".join(
                    [f"{where} has no save to resume from", *notes, "start a new run elsewhere"]
                )
            )
        notes = [f"{note}; continuing from step {state['step']}" for note in notes]
        for name, value in settings.items():
            if name != "run_dir" and (before := state["settings"].get(name)) != value:
                notes.append(f"{name} was {before!r} when {where} was saved and is {value!r} now")
                if name not in MAY_CHANGE_ON_RESUME:
                    raise UsageError(f"{notes[-1]}; a resumed run keeps its settings")
        try:
            for name, module in modules.items():
                module.load_state_dict(state[name])
            self.rows = state["metrics"]
        except (KeyError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"the save in {where} is not of this program: {reason(error)}; start a new run"
            ) from None
        return state, notes

    def cut_off_after(self, step: int) -> None:
        """Remove what a run that goes on after this step makes anew: later saves and rows, its
        report."""
        for later in (path for path in saves(self.path) if step_of(path) > step):
            later.unlink()
        remove(self.path / "results.json")
        self.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in self.rows))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Inside, a temporary file or folder may be written. What goes wrong with the disk raises
    RunFailed."""
    temporary = path.parent / "write.tmp"
    try:
        remove(temporary)
        yield temporary
    except Exception as error:
        if system_error(error) or "os error" in str(
            error
        ):  # the latter from Rust: tokenizers, safetensors
            raise RunFailed(f"cannot write {str(path)!r} ({reason(error)})") from error
        raise
    finally:
        remove(temporary)


def make_folder(run_dir: str, name: str) -> Path:
    """Make run_dir, if it is given; else the first of runs/NAME, runs/NAME-2, ... that does not
    exist yet."""
    Path(run_dir or "runs").mkdir(parents=True, exist_ok=True)
    if run_dir:
        return Path(run_dir)
    for number in itertools.count(1):
        path = Path("runs") / f"{name}{f'-{number}' * (number > 1)}"
        with contextlib.suppress(FileExistsError):
            path.mkdir()  # decides between two that start together
            return path


def refuse_to_overwrite(path: Path) -> None:
    """Raises UsageError if a run has begun in this folder, or anything else is there."""
    if path.exists() and not (path.is_dir() and set(os.listdir(path)) <= LEFT_BEHIND):
        instead = "choose another --run_dir, or add --resume to continue that run"
        raise UsageError(
            f"run folder {str(path)!r} exists and no run overwrites another; {instead}"
        )


def saves(folder: Path) -> list[Path]:
    """The saves in a run's folder, the newest first."""
    return sorted(folder.glob("state-[0-9]*[0-9]-*.pt"), key=step_of, reverse=True)


def step_of(save: Path) -> int:
    """The step after which a save was made."""
    return int(save.name.split("-")[1])


def newest_save(folder: Path, device: torch.device | str = "cpu") -> tuple[dict | None, list[str]]:
    """The newest save that is whole, or None; and a line on each newer one. What could run code is
    never opened."""
    notes = []
    for path in saves(folder):
        with contextlib.suppress(UnpicklingError):
            if digest(path) in path.name:
                return torch.load(path, map_location=device, weights_only=True), notes
        notes.append(
            f"{path.name} is damaged, or holds something other than tensors and plain values"
        )
    return None, notes


def digest(path: Path) -> str:
    """The first 16 hexadecimal digits of the sha256 of a file's bytes, as `sha256sum` prints
    them."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()[:16]


def fingerprint(policy: torch.nn.Module) -> str:
    """A checksum over a model's weights: 16 hexadecimal digits."""
    sha = hashlib.sha256()
    for parameter in policy.parameters():
        sha.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy())
    return sha.hexdigest()[:16]


def not_finite(value, name: str = "") -> str:
    """The name of the first tensor in nested dictionaries that is not finite; empty if all are."""
    if isinstance(value, dict):
        return next(
            filter(
                None, (not_finite(item, f"{name}.{key}".lstrip(".")) for key, item in value.items())
            ),
            "",
        )
    return name if isinstance(value, torch.Tensor) and not value.isfinite().all() else ""


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    shutil.rmtree(path, ignore_errors=True)  # does nothing to a file
    path.unlink(missing_ok=True)
