"""Checks Serve's part of a Serve config by Serve's own schema, strictly: Serve itself ignores unknown fields."""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from ray import serve
from ray.serve.schema import ServeDeploySchema

from deployments.contract.errors import ConfigurationError
from deployments.contract.settings import problems
from deployments.entry_points import did_you_mean

# Ray 2.58 does not know this field, and docs/compatibility.md says what happens without it.
OF_NEWER_RAY = {"max_surge_percent"}
# As `serve.run` wants a `route_prefix`; Serve's schema does not look.
PREFIX = re.compile(r"/([^{}]*[^{}/])?")


class _Any:
    """Any deployment, to try the options of a configuration."""


def check(config: Mapping[str, Any]) -> None:
    """Raise ConfigurationError, with the path of each field that Serve refuses, ignores, or can't run."""
    found = list(_problems(ServeDeploySchema, config, ""))
    if not found:
        for i, application in enumerate(config["applications"]):
            found += _problems_of_application(application, f"applications.{i}.")
    if found:
        raise ConfigurationError(*dict.fromkeys(found))


def _problems(schema: type[BaseModel], given: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the problems of a mapping, and again of the mappings in it, for some of which Serve's schema takes any."""
    known = {*schema.model_fields, *OF_NEWER_RAY}
    for name in given.keys() - known:
        yield f"{path}{name}: unknown field{did_you_mean(name, known)}"
    sections = [each for name in given.keys() & schema.model_fields.keys() for each in _sections(schema, name, given)]
    if shapeless := [(where, entry) for where, _, entry in sections if not isinstance(entry, Mapping)]:
        yield from (f"{path}{where}: Input should be a mapping (got {entry!r})" for where, entry in shapeless)
        return
    unusable = ""
    try:
        # As JSON, where a text may stand for an enumeration.
        schema.model_validate_json(json.dumps(given), strict=True)
    except ValidationError as err:
        yield from problems(err, path, given)
    except (ImportError, AttributeError, TypeError) as err:
        unusable = f"{path.rstrip('.')}: Serve can't use it: {err}"
    below = [each for where, inner, entry in sections for each in _problems(inner, entry, f"{path}{where}.")]
    yield from below or filter(None, [unusable])


def _sections(
    schema: type[BaseModel], name: str, given: Mapping[str, Any]
) -> Iterator[tuple[str, type[BaseModel], Any]]:
    """Yield the mapping of a field, or the entries of its list, if they have a schema; each with its path."""
    annotation, value = schema.model_fields[name].annotation, given[name]
    inner, is_list = _schema_in(annotation), list in {get_origin(each) for each in (annotation, *get_args(annotation))}
    if inner is not None and is_list and isinstance(value, list):
        yield from ((f"{name}.{i}", inner, entry) for i, entry in enumerate(value))
    elif inner is not None and not is_list and isinstance(value, Mapping):
        yield name, inner, value


def _schema_in(annotation: Any) -> type[BaseModel] | None:
    """Return the schema that a field's type names, by itself or in a union or a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((schema for each in get_args(annotation) if (schema := _schema_in(each)) is not None), None)


def _problems_of_application(application: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield what Serve's schema takes, and what fails when Serve deploys an application of it."""
    yield from _problems_of_name(path, {name: application.get(name) for name in ("name", "route_prefix")})
    if not PREFIX.fullmatch(prefix := application.get("route_prefix") or "/"):
        yield f"{path}route_prefix: it begins with `/`, and does not end with it (got {prefix!r})"
    seen, any_deployment = set[str](), serve.deployment()(_Any)
    known = inspect.signature(any_deployment.options).parameters.keys() - {"name"}
    for i, entry in enumerate(application.get("deployments") or []):
        here, name = f"{path}deployments.{i}.", entry["name"]
        yield from _problems_of_name(here, {"name": name})
        if name in seen:
            yield f"{here}name: {name!r} has an entry before, and Serve takes one of them; merge both"
        seen.add(name)
        try:
            any_deployment.options(**{option: value for option, value in entry.items() if option in known})
        except (ValueError, TypeError) as err:
            yield f"{here}{' '.join(str(err).split())}"


def _problems_of_name(path: str, given: Mapping[str, Any]) -> Iterator[str]:
    for field, value in given.items():
        # Ray has them in its metrics; an application with another one never starts.
        if value is not None and not (value.isascii() and value.isprintable()):
            yield f"{path}{field}: {value!r} is not ASCII, and Ray takes nothing else; write it in ASCII"
