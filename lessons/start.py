"""Copy the lessons to my_lessons/, where you can work in them, and open JupyterLab there.

    python lessons/start.py
    python lessons/start.py --no_open       only copy them

A file that already exists is left as it is, with your answers; delete or rename it to start again.
The originals stay as they were built, so that `git pull` meets no local changes.
"""

from toy_env import UsageError, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from toy_env.cli import run_main

LESSONS = Path(__file__).resolve().parent


@dataclass
class Config:
    folder: str = "my_lessons"  # where to copy the lessons, relative to the current folder
    no_open: bool = False  # only copy them, without JupyterLab


def main(config: Config) -> None:
    if not config.no_open and not find_spec("jupyterlab"):
        raise UsageError(
            "JupyterLab is not installed; type pip install -e '.[lessons]', or add --no_open"
        )
    folder, lessons = Path(config.folder).resolve(), sorted(LESSONS.glob("*.ipynb"))
    copied = {path.name: path for path in [*lessons, LESSONS / "README.md", LESSONS / "ROUTES.md"]}
    originals = quote(Path(os.path.relpath(LESSONS, folder)).as_posix())

    def link(match: re.Match) -> str:
        """A link of a copy: one to a file that is not copied leads into the repository."""
        return (
            match[0]
            if match[1] in copied or not (LESSONS / match[1]).is_file()
            else f"]({originals}/{match[1]}"
        )

    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = [path for name, path in copied.items() if not (folder / name).exists()]
        for path in new:
            text = re.sub(r"\]\(([^)#\s]+)", link, path.read_text(encoding="utf-8"))
            (folder / path.name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write to {config.folder!r} ({error.strerror}); choose another --folder"
        ) from None
    count = sum(path in lessons for path in new)
    print(f"{count} lessons copied to {config.folder}, {len(lessons) - count} already existed")
    if not config.no_open:  # below a root that contains the copies and the files that they link to
        from jupyterlab.labapp import LabApp

        root = os.path.commonpath([folder, LESSONS])
        start = f"/lab/tree/{quote(folder.relative_to(root).as_posix())}"
        # its settings: long lines of code are wrapped, and sliders saved with a lesson, which is an error otherwise
        before = os.environ.get("JUPYTER_CONFIG_PATH", "")
        os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(
            filter(None, [before, str(LESSONS / "jupyter")])
        )
        LabApp.launch_instance(
            [f"--ServerApp.root_dir={root}", f"--LabApp.default_url={start}", "--allow-root"]
        )


if __name__ == "__main__":
    run_main(Config, main, __doc__)
