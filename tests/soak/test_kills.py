"""Runs that are killed, and resumed until they end, are the runs that were never disturbed, bit for
bit.

`python tests/soak/test_kills.py` kills 200 times and prints what came of it.
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from toy_env import UsageError

SCRIPTS = ("reinforce", "ppo", "grpo", "dr_grpo", "dapo")
SETTINGS = {
    "steps": 4, "prompts_per_step": 2, "group_size": 4, "max_new_tokens": 16, "eval_problems": 1, "eval_every": 3,
    "save_every": 2, "levels": (1, 2), "device": "cpu",
}  # fmt: skip
PRELOAD = [
    *map("algorithms.{}".format, SCRIPTS),
    "toy_env.plots",
    "huggingface_hub",
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
]
NAMED = {  # moments in which a run once could not be taken up again, by a part of their name
    "before the first save": "before replace state-000000",
    "between the first save and the first row": "after replace state-000000",
    "before the last save": "before replace state-000004",
    "in the last evaluation": "held_out_report 2",
    "while plotting": "draw_curves 1",
    "between curves.png and results.json": "after replace curves.png",
}


def moments(kill: str) -> list[str]:
    """From here on, this process notes its moments: before and after each write, and at what takes
    long.

    At the moment called `kill` it dies, as if the power had gone.
    """
    seen: list[str] = []
    counts = Counter()

    def moment(name: str) -> None:
        seen.append(name)
        if name == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def note(module, name: str, label=None) -> None:
        function = getattr(module, name)

        def noted(*args, **kwargs):
            counts[name] += 1
            at = f"{name} {counts[name]}" if label is None else f"{name} {label(*args)}"
            if label is None:
                moment(at)
                return function(*args, **kwargs)
            moment(f"before {at}")
            result = function(*args, **kwargs)
            moment(f"after {at}")
            return result

        setattr(module, name, noted)

    note(
        os,
        "replace",
        lambda old, new: (
            Path(new).name.rsplit("-", 1)[0] if "state" in str(new) else Path(new).name
        ),
    )
    note(os, "fsync", lambda descriptor: str(counts["fsync"]))
    note(import_module("toy_env.run"), "held_out_report")
    note(import_module("toy_env.run"), "rollout_metrics")
    note(import_module("toy_env.plots"), "draw_curves")
    return seen


def train(script: str, folder: str, kill: str, log: str) -> None:
    """In a process of its own: start or resume a run, and die at a moment. Writes to `log` the
    moments passed."""
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own lives on when the process is killed
    sys.stdout = sys.stderr = open(f"{log}.out", "w", encoding="utf-8")  # noqa: SIM115
    curves = b"\x89PNG, which takes longer to draw than the run"
    import_module("toy_env.plots").draw_curves = lambda rows, results, path, title: (
        path.write_bytes(curves)
    )
    seen = moments(kill)
    run = import_module(f"algorithms.{script}")
    try:
        run.train(run.Config(**SETTINGS, run_dir=folder, resume=Path(folder).exists()))
    except UsageError as error:  # killed after its last write
        assert "has finished its 4 steps" in str(error)
    Path(log).write_text(json.dumps(seen), "utf-8")


@dataclass
class Killer:
    """Starts runs in processes that have torch and transformers already."""

    folder: Path
    kills: int = 0

    def __post_init__(self) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)

    def run(self, script: str, folder: Path, kill: str = "", after: float | None = None) -> bool:
        """Start or resume a run, to be killed at a moment or after some seconds. Returns whether it
        came to its end."""
        process = self.context.Process(
            target=train, args=(script, str(folder), kill, f"{folder}.log")
        )
        process.start()
        process.join(after)
        process.kill()
        process.join()
        if process.exitcode not in (0, -signal.SIGKILL):
            raise AssertionError(
                f"{script}, killed at {kill or after}: {Path(f'{folder}.log.out').read_text('utf-8')[-2000:]}"
            )
        self.kills += process.exitcode != 0
        return process.exitcode == 0

    def undisturbed(self, script: str) -> tuple[dict, list[str]]:
        """What a run leaves that nothing disturbs, and its moments."""
        folder = self.folder / script
        assert self.run(script, folder)
        return contents(folder), json.loads(Path(f"{folder}.log").read_text("utf-8"))

    def disturb(self, script: str, name: str, deaths: list[str | float]) -> dict:
        """A run that dies as given, each time resumed, and in the end left alone. Returns what it
        leaves."""
        folder = self.folder / f"{script}-{name}"
        for death in deaths:
            if self.run(script, folder, *(("", death) if isinstance(death, float) else (death,))):
                break
        else:
            assert self.run(script, folder)
        return contents(folder)


def contents(folder: Path) -> dict:
    """What a finished run leaves: rows without wall times, reports, weights; nothing temporary."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    names = {path.name.split("-0000")[0] for path in folder.iterdir()}
    return {
        "rows": [{name: value for name, value in row.items() if name != "seconds"} for row in rows],
        "results": json.loads((folder / "results.json").read_text("utf-8")),
        "samples": (folder / "samples.txt").read_text("utf-8"),
        "weights": (folder / "checkpoint/model.safetensors").read_bytes(),
        "names": names,
    }


def kill_and_compare(killer: Killer, script: str, kills: int, seed: int = 0) -> list[str]:
    """Kill a script at least so often: at the named moments, then at moments and at times drawn at
    random, each run twice. Returns where."""
    rng = random.Random(f"{script}-{seed}")
    whole, seen = killer.undisturbed(script)
    assert "write.tmp" not in whole["names"]
    before, where = killer.kills, []
    named = [next(moment for moment in seen if moment.endswith(part)) for part in NAMED.values()]

    def one(number: int) -> None:
        first = named.pop(0) if named else rng.choice([rng.choice(seen), rng.uniform(0.05, 1.0)])
        second = rng.choice(seen[len(seen) // 2 :])
        where.append(f"{first}, then {second}")
        result = killer.disturb(script, f"{seed}-{number}", [first, second])
        for part in whole:
            assert result[part] == whole[part], (script, first, second, part)

    while killer.kills - before < kills:
        one(len(where))
    return where


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL and no forkserver"
)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_run_killed_at_any_moment_ends_like_one_that_was_not(script, tmp_path):
    kill_and_compare(Killer(tmp_path), script, 20)


def main(kills: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        killer = Killer(Path(folder))
        for script in SCRIPTS:
            before = killer.kills
            runs = kill_and_compare(killer, script, kills // len(SCRIPTS), seed=1)
            print(
                f"{script}: {killer.kills - before} kills in {len(runs)} runs, all of which ended as if undisturbed"
            )
        print(f"{killer.kills} kills")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
