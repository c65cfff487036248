from pathlib import Path

import pytest

from deployments.contract.errors import ConfigurationError
from deployments.repository.address import Location, parse_repository, split_model
from deployments.repository.errors import SourceError
from graph.config import parse

PIN = "0f" * 32


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("models", Path("models")),
        ("/srv/a b", Path("/srv/a b")),
        (Path("models"), Path("models")),
        ("s3://bucket", Location("s3://bucket")),
        ("gs://bucket/below/", Location("gs://bucket/below")),
        ("az://container/below", Location("az://container/below")),
        ("hf://owner/name@v1.0/below/", Location("hf://owner/name@v1.0/below")),
        ("https://host:8443/models/", Location("https://host:8443/models")),
        (f"https://host/models#sha256={PIN}", Location("https://host/models", PIN)),
        ("http://127.0.0.1:80/m", Location("http://127.0.0.1:80/m")),
        ("http://[::1]/m", Location("http://[::1]/m")),
    ],
)
def test_a_folder_or_an_address(given, expected):
    assert parse_repository(given) == expected


WRONG = {
    "ftp://host/models": "ftp:// is not supported",
    "file:///etc": "file:// is not supported",
    "http://host/models": "use https://",
    "http://127.0.0.1.host/models": "use https://",
    "https://me:secret@host/models": "holds no credentials",
    "hf://owner/": "hf://OWNER/NAME",
    "s3://": "no host or bucket",
    "https:///models": "no host or bucket",
    "https://[host/models": "is no address",
    "https://host/models?a=b": "has no query",
    "https://host/../models": r"no `\.` or `\.\.`",
    "https://host/models#sha256=12": "sha256= and the 64 digits",
    f"s3://bucket/models#sha256={PIN}": "an https:// address may",
    7: "a folder's path or an address is needed",
    "": "a folder's path or an address is needed",
}


@pytest.mark.parametrize("given", WRONG)
def test_what_is_no_address_of_a_repository(given):
    with pytest.raises(SourceError, match=WRONG[given]):
        parse_repository(given)
    with pytest.raises(ConfigurationError, match="model_repository: "):
        parse({"model_repository": given, "members": [{"name": "m"}]})


def test_a_models_own_address():
    assert split_model("name") == (None, "name")
    assert split_model("/srv/models/name/") == (Path("/srv/models"), "name")
    assert split_model("s3://bucket/below/name") == (Location("s3://bucket/below"), "name")
    assert split_model(f"https://host/name#sha256={PIN}") == (Location("https://host", PIN), "name")
    for wrong in (
        "s3://bucket",
        "a name",
        "/srv/a name",
        "/",
        "below/name",
        "../name",
        "https://host/..",
        "ftp://host/name",
    ):
        with pytest.raises(SourceError):
            split_model(wrong)
        with pytest.raises(ConfigurationError, match="model"):
            parse({"members": [{"name": "m", "model": wrong}]})
