"""The cache: wheels by key, the source, logs, and marks of environments that were checked.

Several builds may run at once, also in containers that share a home folder. A wheel appears by an
atomic rename, and a file lock prevents two builds of the same wheel.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from popdist.horovod_build.plan import Build

_KEPT_LOGS = 20
_SCRATCH = re.compile(r"-[0-9a-f]{15,17}$")
_LOG = re.compile(r"\d{8}-\d{6}-\w+\.log")
_ABANDONED_S = 2 * 24 * 3600


@dataclass(frozen=True)
class Cache:
    """Paths and rules of the cache.

    Attributes:
        root: Its folder.
    """

    root: Path

    @property
    def home(self) -> Path:
        """The part of the cache that belongs to Horovod."""
        return self.root / "horovod"

    @property
    def sources(self) -> Path:
        """Folder of the downloaded source; it exists."""
        return self._folder("source")

    def wheel(self, plan: Build) -> Path | None:
        """The path of the wheel of a plan, or None."""
        return next(iter(sorted((self.home / "wheels" / plan.place).glob("*.whl"))), None)

    def store(self, plan: Build, built: Path) -> Path:
        """Moves a folder with a finished wheel into the cache; the caller holds the lock."""
        record = json.dumps(dict(plan.components), indent=2)
        (built / "components.json").write_text(record + "\n", encoding="utf-8")
        home = self._folder("wheels") / plan.place
        if home.exists():
            # A rename cannot replace a folder that is not empty; the old folder is renamed first.
            aside = self.scratch("replaced")
            home.rename(aside / plan.place)
            built.rename(home)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            built.rename(home)
        wheel = self.wheel(plan)
        assert wheel is not None  # noqa: S101 - the compile step has seen it
        return wheel

    def scratch(self, label: str) -> Path:
        """A new empty folder on the file system of the wheels; the caller removes the folder."""
        home = self._folder("scratch")
        for left in home.iterdir():
            # The folder of a killed build; no build takes this long.
            with suppress(FileNotFoundError):
                is_scratch = _SCRATCH.search(left.name) and not left.is_symlink()
                if is_scratch and left.stat().st_mtime < time.time() - _ABANDONED_S:
                    shutil.rmtree(left, ignore_errors=True)
        folder = home / f"{label}-{time.time_ns():x}"
        folder.mkdir()
        return folder

    def new_log(self, key: str) -> Path:
        """The path of a new log; the oldest logs are removed."""
        folder = self._folder("logs")
        logs = [path for path in folder.iterdir() if _LOG.fullmatch(path.name)]
        for old in sorted(logs)[: -_KEPT_LOGS + 1]:
            old.unlink(missing_ok=True)
        return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{key}.log"

    @contextmanager
    def lock(self, key: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Locks the build of one wheel; ``on_wait`` is called once if another process has the lock.

        The kernel releases the lock when the holder ends for any reason.
        """
        with (self._folder("locks") / f"{key}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def mark_checked(self, identity: str) -> None:
        """Records that an installation, by its `identity`, passed the check."""
        self._mark(identity).touch()

    def was_checked(self, identity: str) -> bool:
        """Whether an installation, by its `identity`, passed the check."""
        return self._mark(identity).exists()

    def _mark(self, identity: str) -> Path:
        return self._folder("checked") / hashlib.sha256(identity.encode()).hexdigest()

    def _folder(self, name: str) -> Path:
        folder = self.home / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder
