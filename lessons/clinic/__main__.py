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

import numpy as np
import tyro

from lessons.clinic import logs, rules, signs


@dataclass
class Config:
    run: tyro.conf.Positional[str]  # the folder of a run, or the file of its log
    against: str = ""  # another run of the same seed
    json: bool = False  # print only the verdict, as JSON, and draw nothing
    without: str = ""  # a patch to leave out of the collection


def against(rows: list[dict], others: list[dict]) -> None:
    """Print up to which step two runs are the same, and what differs first."""
    mine, theirs = ({row["step"]: row for row in log} for log in (rows, others))
    steps = sorted(mine.keys() & theirs.keys())
    for step in steps:
        a, b = mine[step], theirs[step]
        parts = [
            f"{name} ({a[name]:.4g} against {b[name]:.4g})"
            for name in signs.FLOORS
            if name in a and name in b and not np.isclose(a[name], b[name])
        ]
        if parts:
            print(f"identical before step {step:.0f}; then", ", ".join(parts))
            return print("what comes before the loss is sampled; the rest is computed from it")
    print(f"identical in all {len(steps)} steps that both log")


def main(config: Config) -> None:
    """Print what the metrics of a run look like, and draw them."""
    rows, settings, path = logs.load(config.run)
    if config.against:
        return against(rows, logs.load(config.against)[0])
    data, run = signs.results(), signs.curves(rows)
    changed = [
        f"{name} {settings[name]}"
        for name, usual in data["settings"].items()
        if settings.get(name, usual) != usual
    ]
    band = data["band"] * (np.nan if changed else 1)
    left = signs.signs(run, band)
    seen = [*rules.findings(rows, left)]
    kind = next((kind for kind, _ in seen if kind), "")
    patch = signs.named(run, kind, config.without) if left else ""
    if config.json:
        return print(json.dumps({"class": kind, "patch": patch, "seen": seen}))

    print(f"{len(rows)} rows, steps {rows[0]['step']:.0f} to {rows[-1]['step']:.0f}")
    missing = signs.FLOORS.keys() - set().union(*rows)
    print("not logged:", ", ".join(sorted(missing)) or "nothing")
    if changed:
        print(f"not the band's: {', '.join(changed)}; judged by the rules alone")
    for name, (step, side) in left.items():
        print(f"  {name:24} leaves the band at step {step}: {side}")
    for name, sign in seen:
        print(f"  {name or 'note'}: {sign}")
    if kind:
        print("look first at:", kind)
    else:
        print("nothing here looks like a bug, which does not mean that there is none")
    if patch:
        print(f"like {patch}.diff:", signs.patches()[patch]["Fix"])
    picture = path.with_name("clinic.png")
    logged = [name for name in signs.FLOORS if name not in missing]
    signs.draw({"run": run}, logged, band).savefig(picture, dpi=100)
    print("see", picture)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
