"""Machine code as text, by the disassembler of the CUDA toolkit or of the package `nvidia-cuda-nvdisasm`."""
from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path


def disassembler(with_labels: bool = False) -> tuple[str, ...] | None:
    """The command before the path of a cubin: `nvdisasm`, else `cuobjdump`, whose text has no labels; None where neither is installed."""
    packaged = (str(p) for p in sorted(Path(sysconfig.get_path("purelib")).glob("*/**/bin/nvdisasm")))
    tool = shutil.which("nvdisasm") or next(packaged, None) or (None if with_labels else shutil.which("cuobjdump"))
    return None if tool is None else (tool, "-sass" if tool.endswith("cuobjdump") else "-c")


def disassembly(command: tuple[str, ...], code: bytes, path: Path) -> str:
    """The instructions of a cubin, which is written to `path`. command: of `disassembler`."""
    path.write_bytes(code)
    return subprocess.run([*command, str(path)], capture_output=True, text=True, check=True).stdout
