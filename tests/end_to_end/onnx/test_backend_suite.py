"""The onnx package's own backend test suite, on the reference interpreter.

All node tests, the nine light models, and the package's small and converted models run here with `executor="interpret"`,
which compiles nothing. The same cases on compiled host code are in `test_host_executor.py`: a fixed sample by default, all of
them with `make test-onnx-full`.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import warnings

from onnx.backend.test import BackendTest

from tests.end_to_end.onnx.node_cases import F16_CHAINS, arrays_of, node_cases, takes_and_gives_plain_tensors
from tilefuse.onnx_backend import PreparedModel, TilefuseBackend, UnsupportedModel

REQUIRED_SHARE = 0.85


class SuiteBackend(TilefuseBackend):
    """The interpreter; `prepare` itself skips what cannot be expressed, so that the reason is shown."""

    @classmethod
    def is_compatible(cls, model, device="CPU", **kwargs):
        return True


# The runner writes the light models' inputs under this folder.
os.environ["ONNX_MODELS"] = tempfile.mkdtemp(prefix="tilefuse-onnx-")
with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    SUITE = BackendTest(SuiteBackend, __name__, F16_CHAINS)
for name, case in SUITE.test_cases.items():
    for method in [m for m in vars(case) if m.endswith("_cuda")]:  # the same cases again for a device that is not asked for here
        delattr(case, method)
    globals()[name] = case


def test_share_of_expressible_node_tests():
    """Of the node tests on plain tensors of supported types at least 85 % become graphs; each of the rest says why not."""
    wanted = [case for case in node_cases() if takes_and_gives_plain_tensors(case)]
    made, reasons = 0, {}
    for case in wanted:
        try:
            prepared = PreparedModel(case.model, "interpret")
            for inputs, _ in case.data_sets:
                prepared.specialise(dict(zip(prepared.input_names, arrays_of(inputs), strict=True)))
            made += 1
        except UnsupportedModel as reason:
            reasons[case.name] = str(reason)
    assert made >= REQUIRED_SHARE * len(wanted), f"{made} of {len(wanted)}: {sorted(reasons)}"
    vague = [name for name, text in reasons.items() if "opset" not in text or "ONNX" not in text]
    assert not vague, f"reasons without operator or opset: {vague}"
