from collections import Counter
from contextlib import contextmanager
from itertools import cycle
from types import SimpleNamespace

import yaml

from graph.config import parse
from lab import reported
from lab.experiments import arrivals
from lab.experiments.arrivals import BATCHING, settings
from scripts.shipped import shipped


def test_each_setting_is_sent_each_rate(monkeypatch):
    @contextmanager
    def running(system, load, edit):
        config = yaml.safe_load(shipped("configs/colocated.yaml").read_text())
        edit(config)
        ingress = parse(config["applications"][0]["args"]).ingress
        times = {"p50": 1.0 + ingress.batch_wait_ms, "p99": 9.0}
        row = SimpleNamespace(
            requests=400, requests_per_s=10.0 * ingress.max_batch_size, failed=0, percentiles_ms=times
        )
        counts = cycle([Counter({1: 2}), Counter({1: 5, 5: 1})])
        yield SimpleNamespace(row=lambda *_: row, batches=lambda: next(counts))

    monkeypatch.setattr(arrivals, "running", running)
    monkeypatch.setattr(arrivals, "workload", lambda *_: None)
    rows = BATCHING.summary([row for part in settings(1.0) for row in part.rows()])
    lines = BATCHING.table(rows).lines
    assert len(lines) == 5
    assert (lines[0][:3], lines[0][-1]) == (["1", "0", "1.0"], "2.0")
    [text] = BATCHING.compare(rows).values()
    assert set(BATCHING.compare(rows)) == {each.subject for each in reported.of("batching")}
    assert text.startswith("10.0/s in batches of up to 1, 80.0/s in batches of up to 8")
    assert text.endswith("a p50 of 1.0 ms with a wait of 0 and 21.0 ms with a wait of 20")
