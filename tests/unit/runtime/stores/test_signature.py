"""Signed programs and caches: what was changed, unsigned or signed by another key is refused before any of it is unpacked."""
from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

import tilefuse
from tests.unit.runtime.test_archive import SPEC
from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.runtime.load import load_program
from tilefuse.runtime.program import Program
from tilefuse.runtime.stores.cache import CacheEntry, KernelCache
from tilefuse.runtime.stores.cache_file import export_cache, import_cache
from tilefuse.runtime.stores.cache_key import CacheKey
from tilefuse.runtime.stores.signature import new_key
from tilefuse.tools import cli

KEY = CacheKey("k", "source", (("target", "host"),))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    new_key(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    w = torch.ones(4, 32)
    constants = {"w": w, "v": w, "h": torch.tensor([1, 2, 3], dtype=torch.bfloat16), "e": torch.zeros(0, 2)}
    return Program(SPEC, constants, cache=KernelCache(tmp_path / "kernels"))


def _nothing_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the archive was opened before it was verified")

    monkeypatch.setattr(zipfile, "ZipFile", refuse)


def test_a_signed_program_loads_with_its_key_and_without(program: Program, tmp_path: Path, key: Path) -> None:
    program.save(tmp_path / "p", sign=key)
    x = torch.randn(4, 32)
    for loaded in (tilefuse.load(tmp_path / "p", require_signature=key), tilefuse.load(tmp_path / "p")):
        assert all(torch.equal(a, b) for a, b in zip(loaded(x), program(x), strict=True))
    with zipfile.ZipFile(tmp_path / "p") as archive:
        assert archive.testzip() is None  # other tools read it as before


@pytest.mark.parametrize("place", [0, 40, -70, -1])
def test_one_changed_bit_anywhere_is_seen(program: Program, tmp_path: Path, key: Path, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the contents, in the name of the key, in the signature itself."""
    path = tmp_path / "p"
    program.save(path, sign=key)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    _nothing_is_unpacked(monkeypatch)
    with pytest.raises(UserError, match="does not fit|signed with key|not signed"):
        load_program(path, require_signature=key)


def test_other_keys_and_no_signature(program: Program, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = new_key(tmp_path / "other")
    program.save(tmp_path / "signed", sign=key)
    program.save(tmp_path / "unsigned")
    appended = (tmp_path / "signed").read_bytes() + b"more"
    (tmp_path / "appended").write_bytes(appended)
    _nothing_is_unpacked(monkeypatch)
    with pytest.raises(UserError, match=f"only files signed with key {other.name}"):
        load_program(tmp_path / "signed", require_signature=tmp_path / "other")
    for name in ("unsigned", "appended"):
        with pytest.raises(UserError, match=f"{name} is not signed"):
            load_program(tmp_path / name, require_signature=key)


def test_the_environment_may_require_and_sign(program: Program, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who names no key gets the one of the environment; options of a program sign what it saves."""
    program.save(tmp_path / "unsigned")
    program.options = Options(sign=str(key))
    program.save(tmp_path / "signed")
    monkeypatch.setenv("TILEFUSE_REQUIRE_SIGNATURE", str(key))
    assert tilefuse.load(tmp_path / "signed").spec == program.spec
    with pytest.raises(UserError, match="not signed"):
        tilefuse.load(tmp_path / "unsigned")


def test_keys_are_long_private_and_never_overwritten(tmp_path: Path, key: Path) -> None:
    assert key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="never written over"):
        new_key(key)
    (tmp_path / "short").write_bytes(b"password")
    with pytest.raises(UserError, match="8 bytes, a key has at least 32"):
        load_program(tmp_path / "p", require_signature=tmp_path / "short")
    with pytest.raises(UserError, match="cannot read the signing key"):
        load_program(tmp_path / "p", require_signature=tmp_path / "absent")


def test_caches(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed caches are imported; a signed program in a cache's place is not, nor an unsigned cache."""
    there, here = KernelCache(tmp_path / "there"), KernelCache(tmp_path / "here")
    there.put(KEY, CacheEntry(b"code", "k"))
    export_cache(there, tmp_path / "signed", key)
    export_cache(there, tmp_path / "unsigned")
    assert import_cache(here, tmp_path / "signed", key) == 1
    _nothing_is_unpacked(monkeypatch)
    with pytest.raises(UserError, match="not signed"):
        import_cache(here, tmp_path / "unsigned", key)
    with pytest.raises(UserError, match="does not fit"):
        load_program(tmp_path / "signed", require_signature=key)


def test_the_command_line(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path / "cache"))
    KernelCache(tmp_path / "cache").put(KEY, CacheEntry(b"code", "k"))
    made = tmp_path / "made"
    assert cli.main(["key", str(made)]) == 0 and "key" in capsys.readouterr().err
    assert cli.main(["cache", "export", str(tmp_path / "file"), "--sign", str(made)]) == 0
    assert cli.main(["cache", "import", str(tmp_path / "file"), "--require-signature", str(made)]) == 0
    assert cli.main(["cache", "import", str(tmp_path / "file"), "--require-signature", str(key)]) == 2
    assert "signed with key" in capsys.readouterr().err
    assert cli.main(["compile", "examples/softmax.txt", "--device", "host", "--sign", str(made)]) == 2
    assert "--save" in capsys.readouterr().err
    program = tmp_path / "p.tilefuse"
    assert cli.main(["compile", "examples/softmax.txt", "--device", "host", "--save", str(program), "--sign", str(made)]) == 0
    assert tilefuse.load(program, require_signature=made).spec.name == "softmax"
