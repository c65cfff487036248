"""Reads the `config.json` of OpenVINO Model Server: models, and pipelines of them."""

import reprlib
from pathlib import Path

from ensemble_models.exporters.facts import WHITE, numbers
from ensemble_models.exporters.names import documents, read_text
from ensemble_models.imports.found import CHANGED, LEFT_OUT, TAKEN, Found, ImportedMember, Part
from ensemble_models.imports.places import choose_version, is_classifier, local, model_of
from scripts.errors import ScriptError

CONFIG, MODELS = "config.json", "model_config_list"
# Properties of OpenVINO that are fields of a member.
PROPERTIES = {
    "NUM_STREAMS": ("streams", int),
    "INFERENCE_NUM_THREADS": ("threads", int),
    "INFERENCE_PRECISION_HINT": ("inference_precision", str),
}


def is_config(path: Path) -> bool:
    """Check whether a file is such a configuration, or a folder has one."""
    file = path / CONFIG if path.is_dir() else path
    return file.suffix == ".json" and file.is_file() and f'"{MODELS}"' in read_text(file)


def read(path: Path) -> Found:
    """Read a configuration, or a folder's; the models are in its folder, by as much of their paths as is there.

    Raises:
        ScriptError: it is damaged, or a model isn't there.
    """
    file = path / CONFIG if path.is_dir() else path
    found = Found("OpenVINO Model Server's configuration")
    whole = Part(found, file.name, documents(file)[0])
    models = {config.get("name", str) or "": config for each in whole.parts(MODELS) for config in [each.part("config")]}
    names = _of_pipeline(whole) or list(models)
    for name in names:
        if name not in models:
            raise ScriptError(f"{file}: a pipeline asks the model {name!r}, which {MODELS} does not have")
        _read_model(file.parent, name, models[name])
    for name in models.keys() - set(names):
        found.note(name, "model", LEFT_OUT, "no node of the pipeline")
    whole.tell(LEFT_OUT, "custom_node_library_config_list", "libraries of code are not run; the transformer decodes")
    whole.close()
    return found


def _of_pipeline(whole: Part) -> list[str]:
    """List the models of the only pipeline; none if there is no pipeline."""
    pipelines = whole.parts("pipeline_config_list")
    if not pipelines:
        return []
    if len(pipelines) > 1:
        names = ", ".join(str(each.get("name", str)) for each in pipelines)
        raise ScriptError(f"{whole.name} has the pipelines {names}; leave one of them in a copy of the file")
    whole.tell(CHANGED, "pipeline_config_list", "its models are members, side by side; clients call it `ensemble`")
    found: list[str] = []
    for node in pipelines[0].parts("nodes"):
        if node.get("type", str) == "custom":
            whole.found.note(
                f"node {node.get('name', str)}", "library_name", LEFT_OUT, "code; the transformer decodes and resizes"
            )
        else:
            found.append(node.get("model_name", str) or "")
    return list(dict.fromkeys(found))


def _read_model(root: Path, name: str, part: Part) -> None:
    part.name = name
    address = part.get("base_path", str) or ""
    base = local(root, address)
    if base is None:
        raise ScriptError(f"{name}: nothing of {address!r} is in {root}; copy or fetch the models beside the file")
    member = ImportedMember(name)
    if base.is_dir():
        folder = choose_version(part, "model_version_policy", base)
        member.source = model_of(root, folder)
        member.flags["--version"] = (folder.name,)
    else:
        member.source = model_of(root, base)
    if not is_classifier(member.source):
        part.found.note(name, "model", LEFT_OUT, "no image goes in, or no scores of classes come out")
        return
    _read_input(part, member)
    _read_execution(part, member)
    part.close("name", "base_path")
    part.found.members.append(member)


def _read_input(part: Part, member: ImportedMember) -> None:
    """Read what the server does to the pixels: layout, colours, mean and scale."""
    layout = part.get("layout", object)
    if isinstance(layout, str) and (model := layout.upper().rpartition(":")[2]) in {"NCHW", "NHWC"}:
        member.flags["--layout"] = (model,)
        part.tell(TAKEN, "layout", f"--layout {model}: what the model takes")
    elif layout is not None:
        part.tell(LEFT_OUT, "layout", "found by the model's shape")
    order = (part.get("color_format", str) or "").upper().partition(":")[0]
    if order in {"RGB", "BGR"}:
        member.flags["--channel-order"] = (order,)
        part.tell(TAKEN, "color_format", f"--channel-order {order}: what the model takes")
    mean, scale = _numbers(part, "mean", 0.0), _numbers(part, "scale", 1.0)
    if part.get("mean", object) is not None or part.get("scale", object) is not None:
        member.flags["--mean"] = tuple(repr(each / WHITE) for each in mean)
        member.flags["--std"] = tuple(repr(each / WHITE) for each in scale)
        part.tell(TAKEN, "mean", "--mean, of pixels from 0 to 1")
        part.tell(TAKEN, "scale", "--std, of pixels from 0 to 1")
    part.tell(CHANGED, "shape", "the model's own size; --size changes it")
    part.tell(CHANGED, "batch_size", "batches are formed for all members together: ingress.max_batch_size")
    part.tell(LEFT_OUT, "precision", "pixels of 8 bits go in")


def _numbers(part: Part, name: str, default: float) -> tuple[float, ...]:
    """Read a number for all channels, or one for each: as a number, a list, or a text of either."""
    given = part.get(name, object)
    try:
        return numbers(default if given is None else given)
    except (TypeError, ValueError):
        raise ScriptError(f"{part.name}: {name} is {reprlib.repr(given)}, and neither a number nor three") from None


def _read_execution(part: Part, member: ImportedMember) -> None:
    properties = part.part("plugin_config")
    properties.name = f"{part.name} plugin_config"
    for name, (field, kind) in PROPERTIES.items():
        value = properties.get(name, object)
        if isinstance(value, str | int) and (kind is str or str(value).isdigit()):
            member.settings[field] = kind(str(value))
            properties.tell(TAKEN, name, f"{field}: {value}")
    properties.tell(CHANGED, "PERFORMANCE_HINT", "streams are measured at the first start")
    properties.close()
    part.get("plugin_config", dict)
    part.tell(CHANGED, "nireq", "streams are measured at the first start; set `streams` to fix them")
    part.tell(CHANGED, "target_device", "CPU")
