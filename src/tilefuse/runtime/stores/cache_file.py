"""The kernel cache as one file: written here, shipped, and read where nothing should be planned or compiled again."""
from __future__ import annotations

import hashlib
import json
import warnings
import zipfile
from pathlib import Path

from tilefuse.base.errors import UserError
from tilefuse.runtime.stores.cache import (
    DAMAGE,
    JUDGEMENTS,
    PROGRAMS,
    SEEDS,
    TRACES,
    CacheWarning,
    KernelCache,
    new_part,
    require_folder,
    write_whole,
)
from tilefuse.runtime.stores.cache_key import FORMAT
from tilefuse.runtime.stores.signature import read_key, reserve_signature, sign_file, verified_file

PURPOSE = "cache"


def export_cache(cache: KernelCache, path: Path | str, sign: Path | str | None = None) -> int:
    """Writes all entries of `cache`, the plans of programs and the judgements of patterns to the one file `path`; the number of entries.

    sign: file with the key that signs it, if one is named.
    Raises: UserError when the cache is off, the file cannot be written, or the key cannot be read.
    """
    folder = require_folder(cache)
    key = read_key(sign) if sign else None
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_part(target.parent) as part:
            with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
                num_entries = _write(cache, folder, archive)
                reserve_signature(archive, PURPOSE, key)
            sign_file(part, key)
            part.replace(target)
    except OSError as error:
        raise UserError(f"cannot write the cache file {target}: {error.strerror or error}") from error
    return num_entries


def _write(cache: KernelCache, folder: Path, archive: zipfile.ZipFile) -> int:
    archive.writestr("format", FORMAT)
    payloads: set[str] = set()
    num_entries = 0
    for entry in cache.entries():
        text = (folder / "entries" / entry.digest[:2] / f"{entry.digest}.json").read_text(encoding="utf-8")
        archive.writestr(f"entries/{entry.digest}.json", text)
        payloads.add(json.loads(text)["payload"])
        num_entries += 1
    for sha in sorted(payloads):
        source = folder / "payloads" / f"{sha}.bin"
        if source.exists():
            archive.writestr(f"payloads/{sha}.bin", source.read_bytes())
    for kind in (PROGRAMS, TRACES, SEEDS):
        for file in (folder / kind).rglob("*.bin"):
            archive.write(file, f"{kind}/{file.name}")
    for judged in (folder / JUDGEMENTS).rglob("*.bin"):
        archive.write(judged, f"{JUDGEMENTS}/{judged.parent.name}/{judged.name}")
    return num_entries


def import_cache(cache: KernelCache, path: Path | str, require_signature: Path | str | None = None) -> int:
    """Adds the entries of a file written by `export_cache`; the number added. Damaged entries are skipped with a warning.

    The machine code of the entries runs in every process that uses the cache: import only trusted files. require_signature: file with the
    key that must have signed the file; it is verified before anything is unpacked.
    Raises: UserError when the cache is off, or the file is missing, is not a cache file of this version, or is not signed as required.
    """
    folder = require_folder(cache)
    key = read_key(require_signature) if require_signature else None
    try:
        with verified_file(path, PURPOSE, key) as file, zipfile.ZipFile(file) as archive:
            names = set(archive.namelist())
            if "format" not in names or archive.read("format").decode() != FORMAT:
                raise UserError(f"{path} is not a kernel cache file of format {FORMAT}", hint="write it with: tilefuse cache export FILE")
            for name in sorted(names):
                _import_plan(archive, name, folder)
            return sum(_import_entry(archive, name, folder) for name in sorted(names) if name.startswith("entries/"))
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except (*DAMAGE, OSError) as error:
        raise UserError(f"{path} is not a readable kernel cache file: {error}") from error


def _import_plan(archive: zipfile.ZipFile, name: str, folder: Path) -> None:
    """A program's plan and sources, a traced graph, or judgements of patterns. Damage that is not detected here is detected when it is
    read."""
    target = _place(name, folder)
    if target is None or target.exists():
        return
    try:
        body = archive.read(name)
    except DAMAGE as error:
        warnings.warn(f"{name} of the cache file is damaged ({error}) and is skipped", CacheWarning, stacklevel=3)
        return
    write_whole(target, body)


def _place(name: str, folder: Path) -> Path | None:
    """The place of a file of plans, graphs or judgements; None for other files."""
    path = Path(name)
    if path.suffix != ".bin" or not path.stem.isalnum():
        return None
    match path.parts[:-1]:
        case (kind,) if kind in (PROGRAMS, TRACES, SEEDS):
            return folder / kind / path.stem[:2] / path.name
        case (kind, family) if kind == JUDGEMENTS and family.isalnum():
            return folder / JUDGEMENTS / family / path.name
    return None


def _import_entry(archive: zipfile.ZipFile, name: str, folder: Path) -> bool:
    digest = Path(name).stem
    try:
        text = archive.read(name)
        sha = json.loads(text)["payload"]
        payload = archive.read(f"payloads/{sha}.bin")
        if hashlib.sha256(payload).hexdigest() != sha or not digest.isalnum():
            raise ValueError("checksum differs")
    except (KeyError, TypeError, *DAMAGE) as error:
        warnings.warn(f"entry {digest} of the cache file is damaged ({error}) and is skipped", CacheWarning, stacklevel=3)
        return False
    target = folder / "entries" / digest[:2] / f"{digest}.json"
    if target.exists():
        return False
    write_whole(folder / "payloads" / f"{sha}.bin", payload)
    write_whole(target, text)
    return True
