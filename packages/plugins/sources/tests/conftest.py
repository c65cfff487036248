"""Places with a repository of one model: a website by HTTP and HTTPS, buckets of S3, GCS and Azure, and a Hub."""

import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from deployments.repository.address import Location, parse_repository
from ensemble_models import manifest
from ensemble_sources import mirror
from tests.certificates import self_signed
from tests.model_sources import Hub, Site, emulator, serving, write

# Whose signature the server does not verify; without one, nothing may be overwritten.
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=us-east-1/20260101/us-east-1/s3/aws4_request"}
PUT = {
    "s3": lambda url, path, content: httpx.put(
        f"{url}/bucket/{path}", content=content, headers=SIGNED, trust_env=False
    ),
    "gs": lambda url, path, content: httpx.post(
        f"{url}/upload/storage/v1/b/bucket/o",
        params={"uploadType": "media", "name": path},
        content=content,
        trust_env=False,
    ),
    "az": lambda url, path, content: azure(url).upload_blob(path, content, overwrite=True),
    "hf": lambda url, path, content: httpx.put(f"{url}/owner/bucket/{path}", content=content, trust_env=False),
}
ADDRESS = {"hf": "hf://owner/bucket"}
# The account that every Azurite has, with its published key.
ACCOUNT = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IF"
    "suFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;BlobEndpoint={}/devstoreaccount1"
)


def azure(url):
    from azure.storage.blob import ContainerClient

    return ContainerClient.from_connection_string(ACCOUNT.format(url), "bucket")


@dataclass
class Place:
    """A folder, and where it is given; `upload` is what one does after the folder has changed."""

    root: Path
    location: Location
    site: Site | None = None
    bucket: str | None = None
    below: str = ""

    def upload(self):
        if self.site is not None:
            manifest.write(self.root)
            return
        # The metadata come last.
        files = sorted(
            (file for file in self.root.rglob("*") if file.is_file()), key=lambda file: file.suffix == ".json"
        )
        for file in files:
            self.put(file.relative_to(self.root).as_posix(), file.read_bytes())

    def put(self, path, content):
        if self.site is not None:
            (self.root / path).write_bytes(content)
        else:
            answer = PUT[self.location.scheme](self.bucket, f"{self.below}/{path}", content)
            assert not isinstance(answer, httpx.Response) or answer.is_success, answer.text


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own, and no listing that is remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(mirror, "LISTED_FOR_S", -1)
    return tmp_path / "cache" / "ensemble-serving" / "models"


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    write(folder, 1)
    return folder


@pytest.fixture
def website(root):
    with Site(root) as site:
        place = Place(root, parse_repository(f"{site.url}/"), site)
        place.upload()
        yield place


@pytest.fixture(scope="session")
def buckets(tmp_path_factory):
    """The URL of a server of a kind of bucket, started once."""
    with ExitStack() as stack:
        urls = {}

        def url(scheme):
            if scheme not in urls and scheme == "hf":
                urls[scheme] = stack.enter_context(serving(Hub))
            elif scheme not in urls:
                log = tmp_path_factory.mktemp(scheme) / "log"
                try:
                    urls[scheme] = stack.enter_context(emulator(scheme, log))
                except subprocess.CalledProcessError:
                    if scheme != "az":
                        raise
                    pytest.skip("Azure's emulator comes from npm's registry, which can't be reached")
                if scheme == "s3":
                    httpx.put(f"{urls[scheme]}/bucket", trust_env=False).raise_for_status()
                elif scheme == "az":
                    azure(urls[scheme]).create_container()
                else:
                    httpx.post(f"{urls[scheme]}/storage/v1/b", json={"name": "bucket"}, trust_env=False)
            return urls[scheme]

        yield url


@pytest.fixture(params=["http", "https", "hf", "s3", "gs", "az"])
def place(request, root, tmp_path, monkeypatch, buckets):
    """Each kind of place."""
    scheme = request.param
    if scheme in PUT:
        url = buckets(scheme)
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", ACCOUNT.format(url))
        if scheme == "hf":
            # HF_ENDPOINT is read when the driver is imported, which an earlier test may have done.
            from huggingface_hub import constants

            template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, url)
            monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
            monkeypatch.setattr(constants, "ENDPOINT", url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
            monkeypatch.setenv(name, "us-east-1")
        below = tmp_path.name
        made = Place(
            root, parse_repository(f"{ADDRESS.get(scheme, f'{scheme}://bucket')}/{below}"), bucket=url, below=below
        )
        made.upload()
        yield made
        return
    certificate = None
    if scheme == "https":
        certificate = self_signed(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with Site(root, certificate) as site:
        made = Place(root, parse_repository(site.url), site)
        made.upload()
        yield made
