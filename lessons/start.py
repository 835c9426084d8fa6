"""Copy the lessons to my_lessons/, where you can work in them, and open JupyterLab there.

    python lessons/start.py
    python lessons/start.py --no_open       only copy them

A file that already exists is left as it is, with your answers; delete or rename it to start again.
The originals stay as they were built, so that `git pull` meets no local changes.
"""

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import tyro

LESSONS = Path(__file__).resolve().parent


@dataclass
class Config:
    folder: str = "my_lessons"  # where to copy the lessons, relative to the current folder
    no_open: bool = False  # only copy them, without JupyterLab


def main(config: Config) -> None:
    """Copy the lessons that the folder lacks, and open JupyterLab."""
    if not config.no_open and not find_spec("jupyterlab"):
        raise SystemExit(
            "JupyterLab is not installed; type pip install -r requirements.txt, or add --no_open"
        )
    folder, lessons = Path(config.folder).expanduser().resolve(), sorted(LESSONS.glob("*.ipynb"))
    texts = [*lessons, LESSONS / "README.md"]
    copied = {path.name for path in texts}
    originals = quote(Path(os.path.relpath(LESSONS, folder)).as_posix())

    def link(match: re.Match) -> str:
        """The start of a link; one to a file that is not copied leads back to the original."""
        if match[1] in copied or not (LESSONS / match[1]).is_file():
            return match[0]
        return f"]({originals}/{match[1]}"

    folder.mkdir(parents=True, exist_ok=True)
    new = [path for path in texts if not (folder / path.name).exists()]
    for path in new:
        text = re.sub(r"\]\(([^)#\s]+)", link, path.read_text(encoding="utf-8"))
        (folder / path.name).write_text(text, encoding="utf-8")
    count = sum(path in lessons for path in new)
    print(f"{count} lessons copied to {config.folder}, {len(lessons) - count} already existed")
    if not config.no_open:
        open_jupyter(folder)


def open_jupyter(folder: Path) -> None:
    """Open JupyterLab in the folder, below a root that also contains what the copies link to."""
    from jupyterlab.labapp import LabApp

    root = os.path.commonpath([folder, LESSONS])
    start = f"/lab/tree/{quote(folder.relative_to(root).as_posix())}"
    # Settings: wrap long lines of code, and do not complain about sliders saved with a lesson.
    paths = [os.environ.get("JUPYTER_CONFIG_PATH"), str(LESSONS / "workshop/jupyter")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    flags = [f"--ServerApp.root_dir={root}", f"--LabApp.default_url={start}", "--allow-root"]
    LabApp.launch_instance(flags)


if __name__ == "__main__":
    # Not toy_env.run.parse: that imports torch, and this is the first command a newcomer types.
    style = {"use_underscores": True, "config": (tyro.conf.FlagCreatePairsOff,)}
    main(tyro.cli(Config, description=__doc__, **style))
