"""Let rl-doctor 0.2.0 or rlprobe 0.1.0 read a log and print the verdict that score.py wants.

    python lessons/clinic/other_programs.py rl-doctor LOG

It needs nothing of this repository, only the program: pip install rldoctor==0.2.0 rlprobe==0.1.0,
in an environment of their own, whose PYTHON score.py starts.
An alarm is a finding of at least a warning, the worst first; its class is the one of ours that its
page speaks of, as we read it.
"""

import json
import subprocess
import sys
from pathlib import Path

CLASSES = {
    "advantage_collapse": "verifier",
    "DEGENERATE_GROUPS": "verifier",
    "REWARD_STD_DEATH": "verifier",
    "reward_hacking": "verifier",
    "FORMAT_GAMING": "verifier",
    "ADV_COLLAPSE": "advantage",
    "length_pathology": "sampler",
    "TRUNCATION_STARVE": "sampler",
    "REWARD_HACK_LENGTH": "normaliser",
    "clip_saturation": "loss",
    "CLIP_SATURATION": "loss",
    "kl_drift": "KL",
    "KL_BLOWUP": "KL",
    "REF_POLICY_DRIFT_ASYMMETRY": "KL",
}  # all others, such as the entropy, the gradient and a plateau: optimizer


def rl_doctor(path: str) -> list[str]:
    command = [Path(sys.executable).with_name("rl-doctor"), "diagnose", path, "-f", "json"]
    out = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout)
    worst = sorted(out["findings"], key=lambda finding: finding["severity"] != "CRITICAL")
    return [x["detector"] for x in worst if x["severity"] in ("CRITICAL", "WARNING")]


def rlprobe(path: str) -> list[str]:
    from rlprobe.doctor.engine import diagnose_view
    from rlprobe.doctor.runview import RunView
    from rlprobe.schemas import RunManifest, StepRecord

    names = {  # as in its adapter for TRL, which wants a trainer
        "reward": "reward_mean",
        "reward_std": "reward_std",
        "frac_reward_zero_std": "zero_variance_group_frac",
        "kl": "kl_mean",
        "entropy": "entropy_mean",
        "loss": "loss",
        "grad_norm": "grad_norm",
        "completions/mean_length": "completion_len_mean",
        "completions/clipped_ratio": "truncation_rate",
    }
    records = []
    for line in Path(path).read_text("utf-8").splitlines():
        row = json.loads(line)
        clipped = row.get("clip_ratio/low_mean", 0) + row.get("clip_ratio/high_mean", 0)
        values = {names[name]: value for name, value in row.items() if name in names}
        records.append(StepRecord(step=int(row["step"]), clip_fraction=clipped, **values))
    view = RunView(RunManifest(run_id="run", created_at="", algorithm="grpo"), records)
    return [x.signature_id for x in diagnose_view(view) if x.severity in ("critical", "warn")]


program, log = sys.argv[1:]
alarms = {"rl-doctor": rl_doctor, "rlprobe": rlprobe}[program](log)
kind = CLASSES.get(alarms[0], "optimizer") if alarms else ""
print(json.dumps({"class": kind, "alarms": alarms}))
