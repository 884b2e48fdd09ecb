"""Downloads the official source from PyPI, verifies and unpacks the source, and applies patches."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

from popdist.errors import BuildError
from popdist.horovod_build.diagnose import explain_download
from popdist.horovod_build.patches import HOROVOD

if TYPE_CHECKING:
    from pathlib import Path

    from popdist.horovod_build.cache import Cache
    from popdist.horovod_build.patches import Patch

SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
"""The digest of PyPI's file of Horovod 0.28.1, unchanged since its release."""

_ARCHIVE = f"horovod-{HOROVOD}.tar.gz"
_CHUNK = 1 << 20


def fetch(cache: Cache) -> Path:
    """The verified source archive, from the cache or downloaded by pip.

    The download uses pip, so that the user's mirror, proxy and certificates apply. A file that the
    user put in the cache is used too.

    Raises:
        BuildError: The download failed, or the file is not the published source.
    """
    kept = cache.sources / _ARCHIVE
    if not kept.exists():
        arriving = cache.scratch("download")
        try:
            _download(arriving, kept)
            verify(arriving / _ARCHIVE)
            (arriving / _ARCHIVE).replace(kept)
        finally:
            for rest in (*arriving.iterdir(), arriving):
                rest.rmdir() if rest.is_dir() else rest.unlink()
    verify(kept)
    return kept


def verify(archive: Path) -> None:
    """Checks that a file is the published source.

    Raises:
        BuildError: The file differs.
    """
    seen = hashlib.sha256()
    with archive.open("rb") as file:
        while block := file.read(_CHUNK):
            seen.update(block)
    if seen.hexdigest() != SHA256:
        raise BuildError(
            "PD201",
            f"{archive.name} is not the file that was published",
            value=f"sha256 {seen.hexdigest()}",
            accepted=f"sha256 {SHA256}",
            hint=f"remove {archive} and try again; if it happens again, ask who runs your package "
            "mirror",
        )


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks the verified source into an empty folder, and returns the source's root."""
    with tarfile.open(archive) as tar:
        # The filter came with security releases of every supported Python; the file is verified
        # either way.
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)  # noqa: S202 - a file with a known digest
    return folder / f"horovod-{HOROVOD}"


def apply(patches: tuple[Patch, ...], root: Path) -> None:
    """Applies patches to the source.

    Raises:
        BuildError: A text to be replaced does not occur exactly once.
    """
    for patch in patches:
        for edit in patch.edits:
            file = root / edit.path
            text = file.read_text(encoding="utf-8") if file.is_file() else ""
            if text.count(edit.old) != 1:
                raise BuildError(
                    "PD201",
                    f"the patch {patch.name!r} does not fit this source",
                    value=f"{edit.path}: {text.count(edit.old)} places with {edit.old!r}",
                    accepted="exactly one",
                    hint="this is a mistake in popdist; please report it",
                )
            file.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def link_nccl(home: Path, links: Path) -> None:
    """Links NCCL into ``links`` in the layout that Horovod expects.

    NCCL's wheel has only ``libnccl.so.2``, a name that the linker does not search for.
    """
    (links / "lib").mkdir(parents=True)
    (links / "include").symlink_to(home / "include")
    for folder in (home / "lib", home / "lib64"):
        for library in sorted(folder.glob("libnccl.so*")):
            for name in (library.name, "libnccl.so"):
                link = links / "lib" / name
                if not link.exists():
                    link.symlink_to(library)


def _download(folder: Path, kept: Path) -> None:
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation"),
        *("--no-binary", ":all:", "--disable-pip-version-check", "--no-input"),
        *("--dest", str(folder), f"horovod=={HOROVOD}"),
    ]
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0 or not (folder / _ARCHIVE).is_file():
        why = explain_download(done.stdout + done.stderr)
        raise BuildError(
            "PD201",
            f"the source of Horovod {HOROVOD} could not be downloaded",
            value=why.seen,
            accepted=f"{_ARCHIVE} from PyPI or the mirror that pip is set up for",
            hint=f"{why.hint}; or put the file here by hand: {kept}",
        )
