"""A run's folder: one writer at a time, files that are whole or absent, and saves with a checksum.

lock, lock.pid                      held by the one process that writes here, and its number
config.json                         every setting
metrics.jsonl                       a log: one row per step; saves hold a digest of each
state-000020-5c106cde1f0a9b37.pt    a save: the step, and the first 16 digits of the sha256 of the file's bytes
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from pickle import UnpicklingError

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from toy_env import Diverged, RunFailed, UsageError, is_out_of_memory, reason, system_error

KEPT = 2  # saves
MAY_CHANGE_ON_RESUME = {"steps", "device", "save_every", "max_tokens_per_pass", "gradient_checkpointing"}
UNUSED = {"lock", "lock.pid", "write.tmp"}  # what a run that was stopped before its first file leaves behind


class RunFolder:
    """A run's folder: run_dir, or a new one of this name in runs/. This process holds it until `release`.

    Raises UsageError if it cannot be made or another process holds it. What cannot be written later raises RunFailed.
    """

    def __init__(self, run_dir: str, name: str) -> None:
        try:
            run_dir.encode()  # the library that writes the checkpoint takes no other names
            self.path = make_folder(run_dir, name)
            self.lock = hold(self.path)
        except UnicodeEncodeError:
            raise UsageError(f"--run_dir must be valid UTF-8, not {run_dir!r}; choose another name") from None
        except OSError as error:
            where = run_dir or str(Path("runs") / name)
            raise UsageError(
                f"cannot make the run folder {where!r} ({reason(error)}); choose another with --run_dir"
            ) from None
        self.write("lock.pid", f"{os.getpid()}\n")
        self.row_digests: list[str] = []

    def release(self) -> None:
        """Let another process write here."""
        if self.lock.is_locked:
            with contextlib.suppress(OSError):
                (self.path / "lock.pid").unlink()
            self.lock.release(force=True)

    # ------------------------------------------------------------------ files

    def write(self, name: str, content: str | Callable[[Path], None]) -> None:
        """Write a text, or what content(path) writes there, a file or a folder: it is synced and then takes its `name`.

        A write that is cut short changes nothing. "{digest}" in the name becomes the checksum of the file.
        """
        temporary = self.path / "write.tmp"
        try:
            remove(temporary)
            if isinstance(content, str):
                temporary.write_text(content, encoding="utf-8", errors="replace")
            else:
                content(temporary)
            for part in [*(temporary.iterdir() if temporary.is_dir() else []), temporary]:
                sync(part)
            path = self.path / (name.replace("{digest}", digest(temporary)) if "{digest}" in name else name)
            if path.is_dir():
                remove(path)
            os.replace(temporary, path)
            sync(self.path)
        except Exception as error:
            with contextlib.suppress(OSError):
                remove(temporary)
            rust = type(error) is Exception or isinstance(error, SafetensorError)  # from tokenizers or safetensors
            if not (rust or system_error(error)):
                raise  # an error of this program
            where = str(self.path / name.replace("-{digest}", ""))
            raise RunFailed(f"cannot write {where!r} ({reason(error)})") from error

    def write_json(self, name: str, value) -> None:
        self.write(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def append_row(self, row: dict) -> None:
        """Add a row to metrics.jsonl; it is on the disk before the save that counts it."""
        line = json.dumps(row, allow_nan=False)
        try:
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunFailed(f"cannot write {str(self.path / 'metrics.jsonl')!r} ({reason(error)})") from error
        self.row_digests.append(digest(line.encode()))

    def rows(self) -> list[dict]:
        """The rows of metrics.jsonl, in order: the lines that this run has written, and no other.

        Raises RunFailed if the file is there and cannot be read.
        """
        path = self.path / "metrics.jsonl"
        try:
            lines = path.read_bytes().splitlines() if path.exists() else []
        except OSError as error:
            raise RunFailed(f"cannot read {str(path)!r} ({reason(error)})") from error
        written = {digest(line): line for line in (line.strip(b"\0") for line in lines)}
        return [json.loads(written[known]) for known in self.row_digests if known in written]

    def cut_off_after(self, step: int) -> list[dict]:
        """Remove what lies behind a step that is taken up again: rows, saves, the end of a run that had finished.

        Returns the rows that remain.
        """
        rows = self.rows()  # before anything is removed: it may not be readable
        for path in saves(self.path):
            if step_of(path) > step:
                path.unlink()
        remove(self.path / "results.json")
        self.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    # ------------------------------------------------------------------ saves

    def save(self, state: dict) -> None:
        """Write a save of `state`, which holds its "step", with digests of the rows; keep the last saves only.

        Raises Diverged, and writes nothing, if a number in it is not finite.
        """
        state |= {"row_digests": self.row_digests}
        if name := next(not_finite(state), None):
            raise Diverged(f"{name} is not finite after step {state['step']}, so it is not saved")

        def write_state(path: Path) -> None:
            with path.open("wb") as file:  # an open file: torch hides what went wrong with a path
                torch.save(state, file)

        self.write(f"state-{state['step']:06d}-{{digest}}.pt", write_state)
        for old in saves(self.path)[KEPT:]:
            old.unlink()

    def load(
        self, settings: dict, model: str, modules: dict, device: torch.device | str
    ) -> tuple[dict | None, list[str]]:
        """Load into `modules` the newest save that is whole. Changes nothing on the disk.

        Returns the save, or None if the run was stopped before its first; and lines to print, on what is not taken and
        what has changed. Raises UsageError if there is none that is whole, or if it was made under other `settings`,
        from another `model` (its fingerprint), or does not fit the modules.
        """
        where = repr(str(self.path))
        state, problems = newest_save(self.path, device)
        if state is None and not problems and is_unused(self.path, but={"config.json"}):
            return None, []
        if state is None:
            why = f" ({'; '.join(problems)})" if problems else ""
            raise UsageError(f"{where} has no save to resume from{why}; start a new run in another --run_dir")
        notes = [f"{problem}; continuing from step {state['step']}" for problem in problems]
        for name, value in settings.items():
            saved = state["settings"].get(name)
            if name not in state["settings"]:
                raise UsageError(f"{where} was saved by an older version; start a new run in another --run_dir")
            if name in MAY_CHANGE_ON_RESUME and saved != value:
                notes.append(f"{name} was {saved!r} and is {value!r} now")
            elif name not in ("resume", "run_dir") and saved != value:
                raise UsageError(
                    f"{name} was {saved!r} when {where} was saved and is {value!r} now; a resumed run keeps its "
                    "settings"
                )
        if state["model"] != model:
            raise UsageError(
                f"the weights of --model {state['settings'].get('model')} are not those that {where} started from; put "
                "them back, or start a new run"
            )
        try:
            for name, module in modules.items():
                module.load_state_dict(state[name])
                if isinstance(module, torch.optim.Optimizer):
                    require_shapes(module)
        except (KeyError, RuntimeError, ValueError) as error:
            raise UsageError(f"the save in {where} does not fit this model: {reason(error)}") from None
        self.row_digests = state["row_digests"]
        return state, notes


def hold(folder: Path) -> FileLock:
    """Take a run folder's lock, which the system gives back when the process ends. A second run of this process may
    take it over. Raises UsageError if another process has it."""
    lock = FileLock(folder / "lock", is_singleton=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        owner = (read_text(folder / "lock.pid") or "unknown").strip()
        raise UsageError(
            f"another process (pid {owner}) is writing to {str(folder)!r}; wait until it has ended, or choose another "
            "--run_dir"
        ) from None
    return lock


def make_folder(run_dir: str, name: str) -> Path:
    """run_dir if it is given, made if it is not there; else runs/NAME, runs/NAME-2, ..., the first that is new."""
    if run_dir:
        Path(run_dir).mkdir(parents=True, exist_ok=True)
        return Path(run_dir)
    number = 1
    while True:
        path = Path("runs") / f"{name}{f'-{number}' * (number > 1)}"
        try:
            path.mkdir(parents=True)  # decides between two that start together
            return path
        except FileExistsError:
            if not path.exists():  # runs itself is a file
                raise
            number += 1


def is_unused(folder: Path, but: Collection[str] = ()) -> bool:
    """Whether a folder holds nothing but what a run leaves behind that was stopped before its first file."""
    return {path.name for path in folder.iterdir()} <= UNUSED | set(but)


def refuse_to_overwrite(path: Path) -> None:
    """Raises UsageError if a run has begun in this folder, or anything else is there."""
    if path.exists() and not (path.is_dir() and is_unused(path)):
        if (path / "lock").is_file():
            hold(path).release()  # if it cannot be had, that is what to say
        raise UsageError(
            f"run folder {str(path)!r} exists and no run overwrites another; choose another --run_dir, or add --resume "
            "to continue that run"
        )


def saves(folder: Path) -> list[Path]:
    """The saves in a run's folder, the newest first."""
    found = [path for path in folder.glob("state-*.pt") if re.fullmatch(r"state-\d{6,}-[0-9a-f]{16}\.pt", path.name)]
    return sorted(found, key=step_of, reverse=True)


def step_of(save: Path) -> int:
    """The step after which a save was made."""
    return int(save.name.split("-")[1])


def newest_save(folder: Path, device: torch.device | str = "cpu") -> tuple[dict | None, list[str]]:
    """The newest save that is whole, None if there is none; and what is wrong with each save that is newer.

    Only tensors and plain values are read: a file that would run code is damaged like any other. One that cannot be
    read now, for want of memory or a right, is not: that is raised as it is.
    """
    problems = []
    for path in saves(folder):
        try:
            if digest(path) not in path.name:
                raise ValueError("its bytes do not match the checksum in its name")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                state = torch.load(path, map_location=device, weights_only=True)
            if not {"step", "rollouts", "settings", "before", "model", "policy", "row_digests"} <= set(state):
                raise ValueError("it is not the save of a run of this version")
            if name := next(not_finite(state), None):
                raise ValueError(f"{name} is not finite")
            return state, problems
        except UnpicklingError:
            problems.append(f"{path.name} is not used: it holds something else than tensors and plain values")
        except (ValueError, TypeError, LookupError, EOFError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise  # it may be whole, as after an OSError
            problems.append(f"{path.name} is not used: {reason(error)}")
    return None, problems


def require_shapes(optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError if a tensor of an optimizer's state has not the shape of its parameter: torch would read past
    its end."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.ndim and value.shape != parameter.shape:
                raise ValueError(f"{name} of the optimizer is {tuple(value.shape)}, not {tuple(parameter.shape)}")


def digest(content: bytes | Path) -> str:
    """The first 16 hexadecimal digits of the sha256 of some bytes, or those of a file, as `sha256sum` prints them."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()[:16]
    sha = hashlib.sha256()
    with content.open("rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()[:16]


def fingerprint(policy: torch.nn.Module) -> str:
    """A checksum over a model's weights: 16 hexadecimal digits."""
    sha = hashlib.sha256()
    for parameter in policy.parameters():
        sha.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy())
    return sha.hexdigest()[:16]


def not_finite(value, name: str = "") -> Iterator[str]:
    """Names of the tensors and numbers inside nested dictionaries and lists that are not finite."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and not value.isfinite().all():
            yield name
    elif isinstance(value, float):
        if not abs(value) < float("inf"):
            yield name
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from not_finite(item, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from not_finite(item, f"{name}[{i}]")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk, so that a power cut finds them there."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError:
            if not path.is_dir():  # a folder some file systems cannot sync
                raise
        finally:
            os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_text(path: Path) -> str | None:
    """The text of a file, whatever bytes it holds; None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
