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


def changed(settings: dict) -> dict:
    """The settings of a run that act on its curves and are not the band's."""
    band = signs.results()["settings"]
    values = {"script": "of another program"} | settings
    return {n: values[n] for n in band if values.get(n, band[n]) != band[n]}


def verdict(rows: list[dict], settings: dict, without: str = "") -> dict:
    """What a run looks like: the class of its bug, "" for none; the patch, if it is clearly one of
    that class; what is seen; and what leaves the band, for a run that has its settings."""
    left, patch, run = {}, "", signs.curves(rows)
    if not changed(settings):
        left = signs.signs(run, signs.results()["band"])
        if not any(row.get("loss") for row in rows):
            left.pop("loss", None)  # a loss of 0 is no sign
    seen = rules.findings(rows, left)
    kind = next((kind for kind, _ in seen if kind), "")
    if left:
        patch = signs.named(run, kind, without)
    return {"class": kind, "patch": patch, "seen": seen, "left": left}


def report(rows: list[dict], settings: dict, found: dict) -> None:
    """Print a verdict, and what it rests on."""
    first, last = (f"{rows[i]['step']:.0f}" for i in (0, -1))
    print(f"{len(rows)} rows, steps {first} to {last}")
    if first != "1":
        print(f"the first row is a mean over {first} steps, so first facts are blurred")
    missing = [name for name in signs.FLOORS if not any(name in row for row in rows)]
    print("not logged:", ", ".join(missing) or "nothing")
    if other := changed(settings):
        names = ", ".join(f"{name} {value}" for name, value in other.items())
        print(f"not the band's: {names}; judged by the rules alone")
    for name, (step, side) in found["left"].items():
        print(f"  {name:24} leaves the band at step {step}, {'above' if side > 0 else 'below'}")
    cause = next((sign for kind, sign in found["seen"] if kind), "")
    for _, sign in found["seen"]:
        print(f"  {sign}" if sign == cause or not cause else f"  also: {sign}")
    if found["class"]:
        print("look first at:", found["class"])
        fix = signs.patches().get(found["patch"], {}).get("Fix", "")
        print(f"like {found['patch']}.diff: {fix}" if fix else "like no patch of the collection")
    else:
        print("nothing here looks like a bug, which does not mean that there is none")


def against(rows: list[dict], others: list[dict]) -> None:
    """Print up to which step two runs are the same, and what differs first: what is sampled comes
    before what is computed from it."""
    others, same = {row["step"]: row for row in others}, 0
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
        for name in sorted(settings.keys() & other_settings.keys() - {"run_dir"}):
            if settings[name] != other_settings[name]:
                print(f"{name}: {settings[name]} against {other_settings[name]}")
        return against(rows, others)
    found = verdict(rows, settings, config.without)
    if config.json:
        return print(json.dumps(found))
    report(rows, settings, found)
    shown = [name for name in signs.FLOORS if any(name in row for row in rows)]
    band = None if changed(settings) else signs.results()["band"]
    figure = signs.draw({Path(config.run).name: signs.curves(rows, len(rows))}, shown, band)
    figure.savefig(path.with_name("clinic.png"), dpi=100)
    print(f"see {path.with_name('clinic.png')}")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
