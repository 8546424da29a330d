"""Emitted programs as text: names of arguments, how matrices are told, comments."""
from __future__ import annotations

from pathlib import Path

import pytest

from tilefuse.tools import cli


def test_an_emitted_script_may_have_any_names(tmp_path: Path) -> None:
    """Words of C, the driver's own, the function's; matrices by columns are told as the script has them; comments end where they do.

    With fixed sizes, and with sizes as arguments, whose names differ from those of the script's variables.
    """
    script = tmp_path / "f.blas"
    script.write_text("matrix A column major; vector float, float_, f; scalar n;  # first \\\ninput A, float, n;\n"
                      "float_ = sgemv(A, float); f = sscal(n, float_); return float_, f;  # last \\\n")
    for sizes in ("fixed", "arguments"):
        emitted = ["--emit", str(tmp_path / "f.cu"), "--sizes", sizes]
        assert cli.main(["blas", str(script), "--shapes", "A:6x10,float:10", *emitted]) == 0
        header, driver = (tmp_path / "f.h").read_text(), (tmp_path / "f_main.cu").read_text()
        assert "const float* float_, const float* n, float* float__, float* f_," in header and "\\\n" not in header
        if sizes == "fixed":
            assert "shape [6, 10], strides [1, 6]" in header
            assert "f(d_A, d_float_, d_n, d_float__, d_f_, workspace, 0)" in driver
        else:
            assert "f(long long m, long long n2, const float* A," in header and "shape [m, n2], strides [1, m]" in header
            assert "f(size_0, size_1, d_A, d_float_, d_n, d_float__, d_f_, workspace, bytes, 0)" in driver


def test_sizes_that_cannot_be_arguments_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kernels made from meanings: an error where sizes were asked for as arguments, else fixed with the reason in the text."""
    script = tmp_path / "f.blas"
    script.write_text("vector x; input x; z = sscal(0.5, x); return z;")
    command = ["blas", str(script), "--shapes", "x:100", "--kind", "template", "--emit", str(tmp_path / "f.cu")]
    assert cli.main([*command, "--sizes", "arguments"]) == 2
    assert "kernels made from meanings" in capsys.readouterr().err
    assert cli.main(command) == 0
    assert "// Sizes are those of x [100]: kernels made from meanings" in (tmp_path / "f.cu").read_text()
    assert cli.main(["blas", str(script), "--shapes", "x:100", "--sizes", "fixed"]) == 2
    assert cli.main(["blas", str(script), "--shapes", "x:100", "--emit", str(tmp_path / "f.cpp"), "--sizes", "fixed"]) == 2
