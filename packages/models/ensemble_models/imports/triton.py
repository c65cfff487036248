"""Reads a model repository of Triton Inference Server: `<model>/config.pbtxt` and `<model>/<version>/`."""

import math
from collections.abc import Sequence
from pathlib import Path

from ensemble_models.imports import protobuf_text
from ensemble_models.imports.found import CHANGED, LEFT_OUT, TAKEN, Found, ImportedMember, Part
from ensemble_models.imports.places import choose_version, inside, is_classifier, model_of
from scripts.errors import ScriptError

CONFIG = "config.pbtxt"
# The file of a version, by backend or by platform.
FILES = {
    "onnxruntime": "model.onnx",
    "onnxruntime_onnx": "model.onnx",
    "openvino": "model.xml",
    "tensorflow_savedmodel": "model.savedmodel",
}
INSTEAD = "the transformer decodes; --data, or --normalize and --channel-order, say how it normalizes"
# What else a model may be, and the way out.
OTHERS = {
    "python": f"its code is not run. {INSTEAD}; where it combines answers, set `combiner`",
    "dali": INSTEAD,
    "tensorrt": "a plan for one GPU; give the ONNX file it was built from by --members",
    "tensorrt_plan": "a plan for one GPU; give the ONNX file it was built from by --members",
    "pytorch": "TorchScript holds code; export the model as ONNX",
    "pytorch_libtorch": "TorchScript holds code; export the model as ONNX",
    "tensorflow_graphdef": "save the model as a SavedModel, or export it as ONNX",
}
LAYOUTS = {"FORMAT_NCHW": "NCHW", "FORMAT_NHWC": "NHWC"}
# Parameters of Triton's OpenVINO and ONNX Runtime backends that are fields of a member.
PARAMETERS = {"INFERENCE_NUM_THREADS": "threads", "intra_op_thread_count": "threads", "NUM_STREAMS": "streams"}


def is_repository(path: Path) -> bool:
    """Check whether a folder is a repository of Triton's, or a model in one."""
    return (path / CONFIG).is_file() or any(path.glob(f"*/{CONFIG}"))


def read(path: Path) -> Found:
    """Read a repository, or the models of one ensemble, whose folder is given.

    Raises:
        ScriptError: a file is damaged, leads out of the repository, or there is no classifier.
    """
    root, chosen = (path.parent, path.name) if (path / CONFIG).is_file() else (path, None)
    found, parts = Found("Triton's model repository"), dict[str, Part]()
    for file in sorted(root.glob(f"*/{CONFIG}")):
        name = file.parent.name
        parts[name] = Part(found, name, protobuf_text.read(inside(root, file, str(file))))
    ensembles = {name: part for name, part in parts.items() if part.part("ensemble_scheduling").parts("step")}
    if chosen is None and len(ensembles) > 1:
        raise ScriptError(f"{root} has the ensembles {', '.join(ensembles)}; name one of them: --from {root}/NAME")
    ensemble = ensembles.get(chosen or "") if chosen else next(iter(ensembles.values()), None)
    names = _steps(parts, ensemble) if ensemble else [chosen] if chosen else list(parts)
    for name in names:
        if name not in parts:
            raise ScriptError(f"{ensemble.name if ensemble else root}: there is no model {name!r} in {root}")
        _read_model(root, name, parts[name])
    if ensemble:
        for name in sorted(parts.keys() - {*names, ensemble.name}):
            found.note(name, "model", LEFT_OUT, f"no step of {ensemble.name}")
    return found


def _steps(parts: dict[str, Part], ensemble: Part) -> list[str]:
    """List the models of an ensemble, and tell that its classifiers become members which run side by side."""
    steps = ensemble.part("ensemble_scheduling").parts("step")
    ensemble.tell(
        CHANGED, "ensemble_scheduling", "its classifiers are members, side by side; clients call it `ensemble`"
    )
    ensemble.close("name", "platform", "backend", "max_batch_size", "input", "output", "ensemble_scheduling")
    names = [step.get("model_name", str) or "" for step in steps]
    return list(dict.fromkeys(names))


def _read_model(root: Path, name: str, part: Part) -> None:
    backend = part.get("backend", str) or part.get("platform", str) or ""
    platform = part.get("platform", str)
    if backend in OTHERS or (backend not in FILES and backend):
        part.tell(
            LEFT_OUT, "backend" if part.get("backend", str) else "platform", OTHERS.get(backend, "not served here")
        )
        return
    if part.get("sequence_batching", dict) is not None:
        part.tell(LEFT_OUT, "sequence_batching", "a model with a state is no classifier of images")
        return
    folder = choose_version(part, "version_policy", root / name)
    wanted = part.get("default_model_filename", str)
    if wanted is not None:
        inside(root, folder / wanted, f"{name}: default_model_filename")
    source = model_of(root, folder, [wanted] if wanted else [FILES[each] for each in (backend, platform) if each])
    if not is_classifier(source):
        part.found.note(name, "model", LEFT_OUT, "no image goes in, or no scores of classes come out")
        return
    member = ImportedMember(name, source, {"--version": (folder.name,)})
    _read_tensors(root, part, member)
    _read_batching(part)
    _read_execution(part, member)
    part.close("name", "platform", "backend", "default_model_filename", "version_policy")
    part.found.members.append(member)


def _read_tensors(root: Path, part: Part, member: ImportedMember) -> None:
    inputs, outputs = part.parts("input"), part.parts("output")
    for each in inputs:
        if (layout := LAYOUTS.get(str(each.get("format", str)))) is not None and len(inputs) == 1:
            member.flags["--layout"] = (layout,)
            part.tell(TAKEN, "input", f"--layout {layout}")
    with_labels = [each for each in outputs if each.get("label_filename", str)]
    for each in with_labels[:1]:
        labels = each.get("label_filename", str) or ""
        member.flags["--labels"] = (str(inside(root, root / part.name / labels, f"{part.name}: label_filename")),)
        if len(outputs) > 1:
            member.flags["--output"] = (each.get("name", str) or "",)
        part.tell(TAKEN, "output", f"names of the classes: {labels}")


def _read_batching(part: Part) -> None:
    """Set the ingress's batches: one ingress serves all models, so the smallest value holds."""
    found, batching = part.found, part.part("dynamic_batching")
    policy = batching.part("default_queue_policy")
    wait_us = batching.get("max_queue_delay_microseconds", int)
    timeout_us = policy.get("default_timeout_microseconds", int)
    values = {
        "max_batch_size": part.get("max_batch_size", int),
        "batch_wait_ms": None if wait_us is None else wait_us / 1000,
        "timeout_ms": None if timeout_us is None else math.ceil(timeout_us / 1000),
        "max_in_flight": policy.get("max_queue_size", int),
    }
    if part.get("dynamic_batching", dict) is None:
        values["max_batch_size"] = None
        part.tell(CHANGED, "max_batch_size", "batches are formed for all members together: ingress.max_batch_size")
    for name, value in values.items():
        if value:
            ingress = found.sections.setdefault("ingress", {})
            ingress[name] = min(value, ingress.get(name, value))
    taken = ", ".join(f"ingress.{name}" for name, value in values.items() if value)
    part.tell(TAKEN, "dynamic_batching", taken or "batches are formed here, too")
    for name in ("preferred_batch_size", "preserve_ordering"):
        batching.tell(LEFT_OUT, name, "batches take what waits; answers go to who asked")
    for name in ("priority_levels", "default_priority_level", "priority_queue_policy"):
        batching.tell(CHANGED, name, "requests state `priority`: docs/api.md")
    batching.close("max_queue_delay_microseconds", "default_queue_policy")
    policy.close("default_timeout_microseconds", "max_queue_size", "timeout_action", "allow_timeout_override")


def _read_execution(part: Part, member: ImportedMember) -> None:
    for name, entry in protobuf_text.pairs(part.get("parameters", list) or []).items():
        field, value = PARAMETERS.get(name), Part(part.found, part.name, entry).get("string_value", str) or ""
        if field and value.isdigit() and int(value):
            member.settings[field] = int(value)
            part.found.note(part.name, f"parameters {name}", TAKEN, f"{field}: {value}")
        else:
            part.tell(LEFT_OUT, "parameters", "each replica measures what is fastest: threads and streams")
    groups: Sequence[Part] = part.parts("instance_group")
    on_gpu = any(each.get("kind", str) == "KIND_GPU" for each in groups)
    part.tell(
        CHANGED,
        "instance_group",
        "members compute on CPUs" if on_gpu else "streams are measured at the first start; set `streams` to fix them",
    )
    if part.part("response_cache").get("enable", bool):
        part.found.sections.setdefault("cache", {})
        part.tell(TAKEN, "response_cache", "cache")
    part.tell(CHANGED, "model_warmup", "each replica computes an image before it is Ready")
    part.tell(LEFT_OUT, "optimization", "OpenVINO optimizes as it compiles")
