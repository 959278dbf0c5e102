"""Where sets live on disk, how their files are fetched and verified, and how archives are unpacked without trust."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from tcpvit.data.image_set import Splits
from tcpvit.files import expand_user, temporary_folder
from tcpvit.progress import Progress

if TYPE_CHECKING:
    import requests

ENVIRONMENT = "TCPVIT_DATA"
CHUNK = 1 << 16  # bytes that are received at a time


@dataclass(frozen=True)
class Resource:
    """A published file: where it is, its md5 and its size in bytes (0: not known)."""

    url: str
    md5: str
    size: int

    @property
    def filename(self) -> str:
        """The last part of the address."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class FileCheck:
    """What `tcpvit data check` found about one file, or one property of the whole set."""

    file: str
    ok: bool
    detail: str


Split = Literal["official", "paper"]


@dataclass(frozen=True)
class Source:
    """A published set: what it is, where its files come from, and how they are found, checked and read."""

    name: str
    about: str
    home: str  # the folder under the data root that its files are unpacked into
    resources: tuple[Resource, ...]
    default_split: Split
    markers: tuple[str, ...]  # a folder that holds one of these files holds the set
    homes: tuple[str, ...]  # the folders under a data root where it may be, beside the root itself
    check: Callable[[Path], list[FileCheck]]
    load: Callable[..., Splits]
    is_needed: Callable[[str], bool] = lambda member: True  # which members of its archives are unpacked
    optional: tuple[Resource, ...] = ()  # fetched when asked for

    def find(self, root: Path) -> Path | None:
        """The set's folder under a data root: the first that holds the first of the markers, and so on."""
        places = (
            root / home for marker in self.markers for home in ("", *self.homes) if (root / home / marker).is_file()
        )
        return next(places, None)


def words(listed: str) -> tuple[str, ...]:
    """The names of a list that is written in one text.

    >>> words("Bare Soil, Bitumen")
    ('Bare Soil', 'Bitumen')
    """
    return tuple(listed.split(", "))


def data_root(root: str | Path | None = None) -> Path:
    """The folder that holds the sets: `root`, else the environment variable TCPVIT_DATA, else the user's cache."""
    import pooch

    given = root or os.environ.get(ENVIRONMENT)
    if given:
        return expand_user(given)
    try:
        cache = Path(pooch.os_cache("tcpvit"))
    except RuntimeError:
        cache = Path("~")  # as older versions answer for a user without a home
    if not cache.is_absolute():
        raise ValueError(f"this user has no home folder to keep data sets in; name one by {ENVIRONMENT} or --data-root")
    return cache


def md5_of(path: Path) -> str:
    """The md5 of a file, as its publishers give it."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_files(folder: Path, published: dict[str, str]) -> list[FileCheck]:
    """Each published file that is there, present or missing, equal to its published md5 or not."""
    checks = []
    for name, md5 in published.items():
        path = folder / name
        if not path.is_file():
            checks.append(FileCheck(name, False, "missing"))
        elif md5_of(path) == md5:
            checks.append(FileCheck(name, True, "the published md5"))
        else:
            checks.append(FileCheck(name, False, f"differs from the published md5 {md5}"))
    return checks


def download(resource: Resource, folder: Path, progress: Progress | None = None) -> Path:
    """Fetch a file into `folder` with pooch: verified, from where an earlier try stopped."""
    import pooch
    import requests

    try:
        path = pooch.retrieve(
            resource.url,
            known_hash=f"md5:{resource.md5}",
            fname=resource.filename,
            path=folder,
            downloader=ResumingDownloader(folder / f"{resource.filename}.part", progress or Progress()),
        )
    except requests.RequestException as error:
        reason = type(error).__name__ if error.response is None else f"HTTP {error.response.status_code}"
        raise OSError(
            f"{resource.url} could not be downloaded ({reason}); what arrived is kept: run the same command to fetch "
            f"the rest, or put the file into {folder} by hand"
        ) from error
    return Path(path)


@dataclass(frozen=True)
class ResumingDownloader:
    """A downloader for pooch that keeps what arrived in `part` and asks the server for the rest next time."""

    part: Path
    progress: Progress

    def __call__(self, url: str, output_file: str | Path, pooch: object) -> None:
        """Download `url` to `output_file`."""
        import requests

        have = self.part.stat().st_size if self.part.exists() else 0
        headers = (
            {"Range": f"bytes={have}-", "Accept-Encoding": "identity"} if have else {"Accept-Encoding": "identity"}
        )
        with requests.get(url, headers=headers, stream=True, timeout=30) as response:
            if response.status_code != requests.codes.requested_range_not_satisfiable:  # else: all of it is here
                response.raise_for_status()
                resumed = response.status_code == requests.codes.partial_content
                self._receive(response, url, have if resumed else 0)
        os.replace(self.part, output_file)

    def _receive(self, response: requests.Response, url: str, have: int) -> None:
        total = have + int(response.headers.get("content-length", 0))
        about = f"downloading {url.rsplit('/', 1)[-1]} ({total / 1e6:,.0f} MB)"
        chunks = -(-(total - have) // CHUNK) if total > have else None
        with self.part.open("ab" if have else "wb") as file:
            for chunk in self.progress.track(response.iter_content(CHUNK), about, chunks):
                file.write(chunk)


def extract(archive: Path, folder: Path, keep: Callable[[str], bool] = lambda name: True) -> None:
    """Unpack the regular files of a tar archive that `keep` accepts; nothing may land outside `folder`.

    An archive with absolute paths, "..", links or devices is refused before anything is written, and an unpacking
    that is interrupted leaves no half-filled folder behind.
    """
    with tarfile.open(archive) as tar:
        members = [member for member in tar.getmembers() if _is_safe(member, archive) and keep(member.name)]
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder, ".unpacking") as temporary:
            for member in members:
                _write_member(tar, member, temporary)
            for member in members:
                (folder / member.name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(temporary / member.name, folder / member.name)


def _is_safe(member: tarfile.TarInfo, archive: Path) -> bool:
    """True for regular files, False for folders; anything else is refused."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or ":" in member.name:
        raise ValueError(f"{archive} was not unpacked: its member {member.name!r} points outside the folder")
    if not (member.isfile() or member.isdir()):
        raise ValueError(f"{archive} was not unpacked: its member {member.name!r} is a link or a device, not a file")
    return member.isfile()


def _write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    target = folder / member.name
    target.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None  # a regular file
    with content, target.open("wb") as file:
        shutil.copyfileobj(content, file)
