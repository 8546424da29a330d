"""Facts about a file that tilefuse reads or writes, without compiling it and without running any of its contents.

    saved program | model in parts | .onnx | .pt2 | graph, plan and BLAS script as text | explanation | tuning results | cached kernels

Every reader gives a mapping with `kind` and the fields that apply; `info_lines` prints it. A signature is named, and verified only
with a key.
"""
from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilefuse.base.errors import ParseError, UserError
from tilefuse.ir.text import parse_graph
from tilefuse.runtime.archive import MODEL, PROGRAM, SPLIT
from tilefuse.runtime.spec import KernelStep, LibraryStep, ProgramSpec
from tilefuse.runtime.stores.cache import DAMAGE
from tilefuse.runtime.stores.signature import Key, signer, verify
from tilefuse.runtime.summary import bytes_text, counted
from tilefuse.tools.info_models import exported_facts, is_exported, onnx_facts
from tilefuse.tools.saved_file import opened_file, saved_specs

KINDS = ("a saved program, .onnx, .pt2, a graph, plan or BLAS script as text, an explanation (explain --json), tuning results, "
         "or an exported cache")


def file_facts(path: Path, key: Key | None = None) -> dict[str, Any]:
    """All facts in the file. key: verifies its signature.

    Raises: UserError for a missing or damaged file, for one of no known kind, and for a signature that does not fit the key.
    """
    if not path.is_file():
        python = path.name.partition(":")[0].endswith(".py")
        raise UserError(f"there is no file {path}", hint=f"info reads files and runs nothing; `tilefuse explain {path}` plans the model "
                        "that this makes" if python else None)
    facts = _read(path)
    facts = {"file": str(path), "kind": facts.pop("kind"), "file_bytes": path.stat().st_size, **facts}
    if key is not None and "signature" not in facts:
        raise UserError(f"{path} is a {facts['kind']}: those are not signed", hint="saved programs and exported caches are")
    if "signature" in facts:
        facts["signature"] = _signature(path, facts["signature"], key)
    return facts


def _read(path: Path) -> dict[str, Any]:
    if zipfile.is_zipfile(path):
        return _archive_facts(path)
    if path.suffix == ".onnx":
        return onnx_facts(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as cause:
        raise UserError(f"cannot read {path}: {cause.strerror}") from cause
    except UnicodeDecodeError as cause:
        raise UserError(f"{path} is of no kind that is known here", hint=f"known: {KINDS}") from cause
    return _text_facts(path, text)


def _archive_facts(path: Path) -> dict[str, Any]:
    with opened_file(path) as archive:
        names = archive.namelist()
        if PROGRAM in names or SPLIT in names:
            return _saved_facts(path, archive)
        if is_exported(names):
            return exported_facts(path, archive)
        if "format" in names:
            return _cache_facts(archive, names)
    raise UserError(f"{path} is an archive of no kind that is known here", hint=f"known: {KINDS}")


def _saved_facts(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    specs, split = saved_specs(path)
    weights, payloads = 0, 0
    for holder in _inner_archives(archive, split):
        weights += holder.getinfo("constants.bin").file_size
        payloads += sum(i.file_size for i in holder.infolist() if i.filename.startswith("payloads/"))
    facts: dict[str, Any] = {"kind": "model in parts" if split else "saved program", "signature": "program"}
    if split:
        facts |= {"name": path.stem, "device": split.get("device"), "parts": [_spec_facts(s) for s in specs],
                  "shapes": dict(split.get("shapes") or {}), "model_bytes": archive.getinfo("model.onnx").file_size}
    else:
        facts |= _spec_facts(specs[0])
        if MODEL in archive.namelist():
            facts |= _form_facts(json.loads(archive.read(MODEL)))
    facts["architectures"] = sorted({k.arch for s in specs for k in s.kernels if k.arch})
    return facts | {"weight_bytes": weights, "code_bytes": payloads, "format": _format(archive)}


def _form_facts(form: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments and results of a saved model: arguments, numbers that are part of the program, the structure of the results."""
    facts: dict[str, Any] = {}
    if form.get("results"):
        facts["structure"] = _structure_text(form["results"]["structure"])
    called = form.get("arguments")
    if called:
        facts["called_with"] = called["shown"]
        names = _leaf_names(called["structure"], [name for name, _, _ in called.get("parameters") or ()])
        facts["conditions"] = [f"{names.get(int(place), f'argument {place}')} is {value!r}" for place, value in called["numbers"]]
    return facts


def _structure_text(structure: Any) -> str:
    """A container with its keys, "*" for each leaf."""
    if structure is None:
        return "*"
    inner = [_structure_text(c) for c in structure.get("children", ())]
    keys = structure.get("context")
    if isinstance(keys, list) and len(keys) == len(inner):
        inner = [f"{key}: {text}" for key, text in zip(keys, inner, strict=True)]
    return f"{str(structure['type']).rpartition(':')[2]}({', '.join(inner)})"


def _leaf_names(structure: Any, parameters: Sequence[str]) -> dict[int, str]:
    """Names of the arguments that are leaves, by their place among all leaves of a call."""
    positional, named = structure["children"]
    arguments = [*zip(parameters, positional["children"]), *zip(named.get("context") or (), named["children"])]
    names: dict[int, str] = {}
    place = 0
    for name, child in arguments:
        if child is None:
            names[place] = name
        place += _num_leaves(child)
    return names


def _num_leaves(structure: Any) -> int:
    return 1 if structure is None else sum(map(_num_leaves, structure.get("children", ())))


def _inner_archives(archive: zipfile.ZipFile, split: Mapping[str, Any]) -> Iterator[zipfile.ZipFile]:
    if not split:
        yield archive
        return
    for number in range(int(split["programs"])):
        with archive.open(f"programs/{number}") as file, zipfile.ZipFile(file) as inner:
            yield inner


def _format(archive: zipfile.ZipFile) -> int:
    name = SPLIT if SPLIT in archive.namelist() else PROGRAM
    return int(json.loads(archive.read(name))["format"])


def _spec_facts(spec: ProgramSpec) -> dict[str, Any]:
    values = {v.name: v for v in spec.values}

    def values_of(names: Sequence[str], titles: Sequence[str]) -> list[dict[str, Any]]:
        return [{"name": title, "dtype": values[n].dtype, "shape": list(values[n].shape)} for n, title in zip(names, titles, strict=True)]

    calls = Counter(s.operator for s in spec.steps if isinstance(s, LibraryStep))
    steps = sum(isinstance(s, KernelStep) for s in spec.steps)
    explanation = json.loads(spec.explanation) if spec.explanation else {}
    facts = {"name": spec.name, "device": spec.device, "inputs": values_of(spec.inputs, spec.told_inputs),
             "results": values_of(spec.results, spec.told_results), "kernels": steps, "distinct_kernels": len(spec.kernels),
             "operators": dict(calls.most_common()), "operators_are": "library calls",
             "weights": sum(v.role == "constant" for v in spec.values)}
    if spec.updates:
        facts["updates"] = list(spec.updates)
    if explanation.get("options"):
        facts["options"] = explanation["options"]
    if explanation.get("fallbacks"):
        facts["fallbacks"] = explanation["fallbacks"]
    return facts


def _cache_facts(archive: zipfile.ZipFile, names: Sequence[str]) -> dict[str, Any]:
    rows = [json.loads(archive.read(n)) for n in names if n.startswith("entries/")]
    fields = [dict(row.get("fields", {})) for row in rows if isinstance(row, dict)]
    return {"kind": "exported cache", "signature": "cache", "format": archive.read("format").decode(), "kernels": len(rows),
            "architectures": sorted({str(f["arch"]) for f in fields if f.get("arch")}),
            "code_bytes": sum(i.file_size for i in archive.infolist() if i.filename.startswith("payloads/")),
            "programs": sum(n.startswith("programs/") for n in names), "traces": sum(n.startswith("traces/") for n in names)}


def _text_facts(path: Path, text: str) -> dict[str, Any]:
    head = text.lstrip()
    if head.startswith("{") and (facts := _json_facts(text)) is not None:
        return facts
    if path.suffix == ".blas":
        return _script_facts(path, text)
    bare = "\n".join(line for line in head.splitlines() if not line.lstrip().startswith("//")).lstrip()
    if bare.startswith("graph"):
        return _graph_facts(path, text)
    if bare.startswith("plan"):
        return _plan_facts(path, text)
    try:
        return _script_facts(path, text)
    except ParseError as cause:
        raise UserError(f"{path} is of no kind that is known here", hint=f"known: {KINDS}") from cause


def _json_facts(text: str) -> dict[str, Any] | None:
    """An explanation, or tuning results with one row a line; None for any other JSON."""
    try:
        data = json.loads(text)
        rows = [data]
    except ValueError:
        try:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            return None
        data = {}
    if isinstance(data, dict) and "kernels" in data and ("graph" in data or data.get("parts")):
        return _explanation_facts(data)
    if rows and all(isinstance(r, dict) and {"device", "key", "template"} <= set(r) for r in rows):
        return {"kind": "tuning results", "rows": len(rows), "devices": dict(Counter(str(r["device"]) for r in rows).most_common()),
                "finished": sum(bool(r.get("done")) for r in rows)}
    return None


def _explanation_facts(data: Mapping[str, Any]) -> dict[str, Any]:
    from tilefuse.runtime.summary import parts_of, short_operator

    facts: dict[str, Any] = {"kind": "explanation", "name": data.get("name"), "device": data.get("device"), "format": data.get("format"),
                             "kernels": len(data["kernels"]), "unfused_kernels": data.get("unfused_kernels"),
                             "library_calls": len(data.get("library", ())), "fallbacks": list(data.get("fallbacks", ()))}
    if data.get("parts"):
        facts["parts_counted"] = len(data["parts"])
    operators: Counter[str] = Counter()
    inputs: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    weights, weight_bytes = 0, 0
    for part in parts_of(data):
        graph = part.get("graph") or {"inputs": [], "nodes": [], "results": []}
        operators.update(short_operator(str(n.get("operator") or n.get("kind"))) for n in graph["nodes"])
        types = {v["name"]: v.get("type", "") for v in (*graph["inputs"], *graph["nodes"])}
        titles = {name: title for title, name in part.get("inputs", ())}
        inputs += [{"name": titles.get(i["name"], i["name"]), "type": i["type"]} for i in graph["inputs"] if not i["constant"]]
        results += [{"name": title, "type": types.get(name, "")} for title, name in
                    part.get("results") or [(n, n) for n in graph["results"]]]
        weights += sum(bool(i["constant"]) for i in graph["inputs"])
        weight_bytes += sum(int(i["bytes"]) for i in graph["inputs"] if i["constant"])
    facts |= {"inputs": inputs, "results": results, "weights": weights, "weight_bytes": weight_bytes,
              "operators": dict(operators.most_common())}
    if data.get("options"):
        facts["options"] = data["options"]
    return facts


def _graph_facts(path: Path, text: str) -> dict[str, Any]:
    graph = parse_graph(text, source=str(path))
    return {"kind": "graph", "name": graph.name,
            "inputs": [{"name": i.name, "type": str(i.type)} for i in graph.inputs if not i.constant],
            "results": [{"name": r, "type": str(graph.type_of(r))} for r in graph.results],
            "weights": sum(i.constant for i in graph.inputs), "weight_bytes": sum(i.type.num_bytes for i in graph.inputs if i.constant),
            "operators": dict(Counter(n.kind for n in graph.nodes).most_common())}


def _plan_facts(path: Path, text: str) -> dict[str, Any]:
    from tilefuse.plan.pattern import LibraryCall
    from tilefuse.plan.text.text import parse_plan

    plan = parse_plan(text, str(path))
    calls = [s for s in plan.steps if isinstance(s, LibraryCall)]
    return {"kind": "plan", "name": plan.name, "device": plan.device, "kernels": len(plan.steps) - len(calls),
            "operators": dict(Counter(c.operator for c in calls).most_common()), "operators_are": "library calls",
            "predicted_us": plan.objective_us, "unfused_us": plan.unfused_us, "rejected": len(plan.rejected)}


def _script_facts(path: Path, text: str) -> dict[str, Any]:
    from tilefuse.scripts.language.syntax import parse_script

    script = parse_script(text, path.name)
    kinds = {name: kind for name, (kind, _) in script.declared.items()}
    return {"kind": "BLAS script", "name": path.stem,
            "inputs": [{"name": n.text, "type": kinds.get(n.text, "")} for n in script.inputs],
            "results": [{"name": n.text, "type": kinds.get(n.text, "")} for n in script.results],
            "operators": dict(Counter(s.function.text for s in script.statements).most_common())}


def _signature(path: Path, purpose: str, key: Key | None) -> dict[str, Any]:
    """Name of the key that signed a file, and whether the signature was verified. Raises: UserError where it does not fit the key."""
    name = signer(path)
    if key is None:
        return {"key": name, "verified": None}
    try:
        verify(path.read_bytes(), path, purpose, key)
    except (*DAMAGE, OSError) as cause:
        raise UserError(f"cannot read {path}: {cause}") from cause
    return {"key": name, "verified": True}


def info_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The facts for a person, one a line, each with the word to grep for."""
    yield f"{facts['file']}: {facts['kind']}, {bytes_text(facts['file_bytes'])}"
    for name in ("name", "device", "producer", "opset", "exported_by", "format"):
        if facts.get(name) not in (None, "", []):
            yield f"{name.replace('_', ' ')} {_told(facts[name])}"
    if facts.get("architectures"):
        size = f", {bytes_text(facts['code_bytes'])}" if "code_bytes" in facts else ""
        yield f"machine code for {', '.join(facts['architectures'])}{size}"
    yield from _values(facts)
    for number, part in enumerate(facts.get("parts", ()), 1):
        yield f"part {number}: {part['name']}, {counted(part['kernels'], 'kernel')}"
        yield from _values(part)
    if facts.get("conditions"):
        yield from (f"condition {text}" for text in facts["conditions"])
    if "kernels" in facts:
        distinct = facts.get("distinct_kernels", facts["kernels"])
        remarks = [f"{distinct} distinct"] if distinct < facts["kernels"] else []
        remarks += [f"{facts['unfused_kernels']} without fusion"] if facts.get("unfused_kernels") else []
        yield f"kernels {facts['kernels']}" + (f" ({', '.join(remarks)})" if remarks else "")
    if "weights" in facts or "weight_bytes" in facts:
        count = f"{facts['weights']}, " if "weights" in facts else ""
        yield f"weights {count}{bytes_text(facts.get('weight_bytes', 0))}" if facts.get("weights", 1) else "weights none"
    if facts.get("operators"):
        counts = ", ".join(f"{count} {name}" for name, count in facts["operators"].items())
        yield f"{facts.get('operators_are', 'operators')} {sum(facts['operators'].values())}: {counts}"
    for name in ("predicted_us", "unfused_us", "rejected", "rows", "finished", "devices", "programs", "traces", "options", "updates"):
        if facts.get(name) not in (None, "", [], {}):
            yield f"{name.replace('_us', ' us')} {_told(facts[name])}"
    for item in facts.get("fallbacks", ()):
        yield f"fallback {item['operator']}: {item['reason']}"
    for note in facts.get("notes", ()):
        yield f"note {note}"
    if "signature" in facts:
        signature = facts["signature"]
        state = "verified" if signature["verified"] else "not verified: --require-signature KEYFILE does"
        yield f"signature of key {signature['key']}, {state}" if signature["key"] else "signature none"


def _values(facts: Mapping[str, Any]) -> Iterator[str]:
    for word in ("inputs", "results"):
        for value in facts.get(word, ()):
            shape = value.get("type") or (f"{value['dtype']}[{', '.join(map(str, value['shape']))}]" if value.get("shape") is not None
                                          else f"{value.get('dtype', '')}, of no known extents")
            yield f"{word.removesuffix('s')} {value['name']}: {shape}" + (f", {value['note']}" if value.get("note") else "")
    if facts.get("called_with"):
        yield f"called with {facts['called_with']}"
    if facts.get("structure", "*") != "*":  # one tensor has nothing to tell
        yield f"structure of the results {facts['structure']}"


def _told(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{name} {item}" for name, item in value.items())
        case list() | tuple():
            return ", ".join(map(str, value))
        case float():
            return f"{value:.3f}"
    return str(value)
