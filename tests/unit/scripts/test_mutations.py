"""A part of what `python -m tests.mutations` tries: what is accepted of mutated configurations means one thing."""

import re

import pytest

from scripts.serve import deploy
from tests.conftest import ROOT
from tests.mutations import FILES, SCALARS, misread, mutations, problems

# Of so many mutations one is tried.
EVERY = 29


@pytest.mark.parametrize("file", FILES)
def test_a_mutation_is_refused_or_means_the_same_to_all(tmp_path, file):
    for kind, path, text in mutations((ROOT / file).read_text(), EVERY):
        found = problems(text, tmp_path)
        if found is None:
            assert kind in SCALARS[5:], (kind, path)
            assert misread(text, path) is None, (kind, path)
        else:
            assert all(re.match(r"line \d+: [\w.]+: .", each) for each in found), (kind, path, found)


def test_deploy_and_doctor_refuse_the_same(tmp_path, monkeypatch):
    """They have the process of `serve`, or its function; so a few of each kind do."""
    from ensemble_models.doctor import __main__ as doctor

    monkeypatch.delenv("ENSEMBLE_RAY_SESSION", raising=False)
    monkeypatch.setattr(deploy, "read_clients_file", lambda port: (_ for _ in ()).throw(FileNotFoundError()))
    for kind, path, text in mutations((ROOT / FILES[0]).read_text(), 101):
        (file := tmp_path / "mutated.yaml").write_text(text)
        refused = problems(text, tmp_path)
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (what of both is the matter here)
            deploy.deploy(file)
        assert ("no server of this user listens" in str(caught.value)) == (refused is None), (kind, path)
        # What comes after it has to do with this machine.
        findings = doctor.findings(file, False, None, None)
        said = next(each for each in findings if each.what.startswith("configuration: "))
        assert (said.verdict == "ok") == (refused is None), (kind, path, said)
