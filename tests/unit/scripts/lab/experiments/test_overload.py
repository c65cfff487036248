import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import yaml

from graph.config import parse
from scripts.lab.experiments import overload
from scripts.lab.experiments.overload import SETUPS
from scripts.lab.overload.__main__ import Seen
from scripts.shipped import shipped


@pytest.mark.parametrize("name", SETUPS)
def test_a_setup_is_a_configuration(name):
    system, edit = SETUPS[name]
    config = yaml.safe_load(shipped(system.file or "configs/colocated.yaml").read_text())
    edit(config)
    args = parse(config["applications"][0]["args"])
    ensemble = args.ensemble
    assert args.ingress.max_batch_size == overload.LARGEST_BATCH
    assert (ensemble.cascade is not None) == (name != "both members")
    assert (ensemble.under_load is not None) == ("for load" in name)


def test_each_setup_is_sent_as_much_more_than_the_first_can_answer(tmp_path, monkeypatch, draw, capsys):
    sent, answers = [], [{"requests_per_s": rate} for rate in (80.0, 100.0, 90.0, 70.0, 60.0, 50.0)]

    @contextmanager
    def running(*_):
        yield SimpleNamespace(load=lambda *_: answers.pop(0))

    async def drive(url, images, rate, seconds, after):
        sent.append((len(images), rate, seconds))
        # The second one refuses, the third asks fewer.
        refused, eased = len(sent) == 2, len(sent) == 3
        load = [Seen(n / 10, 0.1, 503 if refused and n % 2 else 200, n % 4 > 0, 1, eased) for n in range(20)]
        return [*load, Seen(2.1, 0.1, 200, True, 2)]

    monkeypatch.setattr(overload, "running", running)
    monkeypatch.setattr(overload, "drive", drive)
    monkeypatch.setattr(overload, "set_up", lambda: None)
    monkeypatch.setattr(overload, "workload", lambda *_: None)
    files = {flag: tmp_path / f"told.{flag}" for flag in ("json", "markdown")}
    flags = [text for flag, file in files.items() for text in (f"--{flag}", str(file))]
    overload.main(["--data", str(draw({"cat": 2, "dog": 1})), "--seconds", "2", *flags])
    assert sent == 4 * [(3, 150.0, 2)]
    told = json.loads(files["json"].read_text())
    assert [told[name] for name in ("rate", "answered_before", "answered_after")] == [150, 100, 70]
    assert [told[name]["refused"] for name in SETUPS] == [0, 10, 0, 0]
    assert [told[name]["eased"] for name in SETUPS] == [0, 0, 1, 0]
    assert files["markdown"].read_text().splitlines()[3].startswith("| the cascade | 20 | 10 | 0 |")
    assert "1.5 times what both members answer" in capsys.readouterr().out
