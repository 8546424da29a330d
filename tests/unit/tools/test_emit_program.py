"""Emitted programs as text: names of arguments, how matrices are told, comments."""
from __future__ import annotations

from pathlib import Path

from tilefuse.tools import cli


def test_an_emitted_script_may_have_any_names(tmp_path: Path) -> None:
    """Words of C, the driver's own, the function's; matrices by columns are told as the script has them; comments end where they do."""
    script = tmp_path / "f.blas"
    script.write_text("matrix A column major; vector float, float_, f; scalar n;  # first \\\ninput A, float, n;\n"
                      "float_ = sgemv(A, float); f = sscal(n, float_); return float_, f;  # last \\\n")
    assert cli.main(["blas", str(script), "--shapes", "A:6x10,float:10", "--emit", str(tmp_path / "f.cu")]) == 0
    header, driver = (tmp_path / "f.h").read_text(), (tmp_path / "f_main.cu").read_text()
    assert "const float* float_, const float* n, float* float__, float* f_," in header
    assert "shape [6, 10], strides [1, 6]" in header and "\\\n" not in header
    assert "f(d_A, d_float_, d_n, d_float__, d_f_, workspace, 0)" in driver
