"""Does a run look healthy, and if not, where is the bug?

    python -m lessons.clinic runs/grpo-0               the folder of a run of ours
    python -m lessons.clinic out/checkpoint-60         of TRL, Unsloth or ms-swift
    python -m lessons.clinic wandb.csv                 an export of W&B or SwanLab, a log of verl
    python -m lessons.clinic runs/a --against runs/b   where two runs of one seed part

Draws the metrics into clinic.png beside the log. The band of healthy runs is that of grpo.py at its
defaults; any other run is judged by the rules of RULES.md that do not depend on it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from lessons.clinic import logs, rules, signs

SAMPLED = [*signs.FLOORS][:11]  # what comes before the loss


@dataclass
class Config:
    run: tyro.conf.Positional[str]  # the folder of a run, or the file of its log
    against: str = ""  # another run of the same seed
    json: bool = False  # print only the verdict, as JSON, and draw nothing
    without: str = ""  # a patch to leave out of the collection


def differing(settings: dict, others: dict) -> list[str]:
    """The names of the settings that differ, of those that both runs have."""
    return [name for name in others if settings.get(name, others[name]) != others[name]]


def verdict(rows: list[dict], band: np.ndarray | None, without: str) -> dict:
    """What a run looks like: the class of its bug, "" for none; the patch, if it is clearly one of
    that class; what is seen; and what leaves the band, if it has one."""
    run = signs.curves(rows)
    left = {} if band is None else signs.signs(run, band)
    seen = rules.findings(rows, left)
    kind = next((kind for kind, _ in seen if kind), "")
    patch = signs.named(run, kind, without) if left else ""
    return {"class": kind, "patch": patch, "seen": seen, "left": left}


def report(found: dict) -> None:
    """Print a verdict, and what it rests on."""
    for name, (step, side) in found["left"].items():
        print(f"  {name:24} leaves the band at step {step}, {'above' if side > 0 else 'below'}")
    for kind, sign in found["seen"]:
        print(f"  {kind or 'note'}: {sign}")
    if not found["class"]:
        return print("nothing here looks like a bug, which does not mean that there is none")
    print("look first at:", found["class"])
    if found["patch"]:
        print(f"like {found['patch']}.diff:", signs.patches()[found["patch"]]["Fix"])
    elif found["left"]:
        print("like no patch of the collection")


def against(rows: list[dict], others: list[dict]) -> None:
    """Print up to which step two runs are the same, and what differs first: what is sampled comes
    before what is computed from it."""
    same, others = 0, {row["step"]: row for row in others}
    for row in rows:
        other, parts = others.get(row["step"], {}), {}
        for name in [name for name in signs.FLOORS if name in row and name in other]:
            if not np.isclose(row[name], other[name], rtol=1e-5, atol=1e-9):
                parts[name] = f"{name} ({row[name]:.4g} against {other[name]:.4g})"
        if parts:
            first, *then = parts
            print(f"identical to step {same:.0f}; then {parts[first]}")
            print("then also:", ", ".join(parts[name] for name in then) or "nothing")
            where = "what is sampled: prompts, sampler, verifier, or the update before"
            if first not in SAMPLED:
                where = "what is computed from the same samples: scoring, advantage, loss, update"
            return print("so the first difference is in", where)
        same = row["step"] if other else same
    print(f"identical to step {same:.0f}, and no further steps to compare")


def main(config: Config) -> None:
    """Print what the metrics of a run look like, and draw them."""
    rows, settings, path = logs.load(config.run)
    if config.against:
        others, other_settings, _ = logs.load(config.against)
        for name in differing(settings, other_settings):
            print(f"{name}: {settings[name]} against {other_settings[name]}")
        return against(rows, others)
    results = signs.results()
    changed = differing(settings, results["settings"])
    band = None if changed else results["band"]
    found = verdict(rows, band, config.without)
    if config.json:
        return print(json.dumps(found))
    first, last = rows[0]["step"], rows[-1]["step"]
    print(f"{len(rows)} rows, steps {first:.0f} to {last:.0f}")
    if first > 1:
        print(f"the first row is a mean over {first:.0f} steps, so first facts are blurred")
    logged = [name for name in signs.FLOORS if any(name in row for row in rows)]
    print("not logged:", ", ".join(n for n in signs.FLOORS if n not in logged) or "nothing")
    if changed:
        names = ", ".join(f"{name} {settings[name]}" for name in changed)
        print(f"not the band's: {names}; judged by the rules alone")
    report(found)
    figure = signs.draw({Path(config.run).name: signs.curves(rows, len(rows))}, logged, band)
    figure.savefig(path.with_name("clinic.png"), dpi=100)
    print(f"see {path.with_name('clinic.png')}")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
