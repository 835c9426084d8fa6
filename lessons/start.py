"""Copy the lessons to my_lessons/, to work in, and open them in JupyterLab.

    python lessons/start.py
    python lessons/start.py --no_open       copy only

A lesson that is there already is left as it is, with your answers; delete or rename it to begin anew. The originals
stay as they were built, so that `git pull` finds nothing in its way.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from toy_env import UsageError
from toy_env.cli import run_main

LESSONS = Path(__file__).parent


@dataclass
class Config:
    folder: str = "my_lessons"  # where to copy them, from the folder you are in
    open: bool = True  # start JupyterLab there


def main(config: Config) -> None:
    folder = Path(config.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {config.folder!r} ({error.strerror}); choose another --folder") from None
    new = [path for path in sorted(LESSONS.glob("*.ipynb")) if not (folder / path.name).exists()]
    for path in [*new, LESSONS / "README.md"]:
        shutil.copy(path, folder)
    print(f"{len(new)} lessons copied to {folder}, {len(list(folder.glob('*.ipynb'))) - len(new)} were there")
    if config.open:
        subprocess.run([sys.executable, "-m", "jupyter", "lab", str(folder)], check=False)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
