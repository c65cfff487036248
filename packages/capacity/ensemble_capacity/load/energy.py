"""The energy that the processors of this machine use, by RAPL, where Linux lets it be read."""

from __future__ import annotations

from pathlib import Path

ZONES = Path("/sys/class/powercap")


class Energy:
    """Joules since it was made, of all processor packages; a counter that starts anew is taken into account."""

    def __init__(self, zones: Path = ZONES) -> None:
        """Find what can be read; raises OSError if nothing can."""
        self._files = [
            zone / "energy_uj"
            for zone in sorted(zones.glob("intel-rapl:*"))
            # A package's subzones are parts of it.
            if zone.name.count(":") == 1 and (zone / "name").read_text(encoding="ascii").startswith("package")
        ]
        if not self._files:
            raise OSError(f"{zones} has no counter of a processor package")
        self._most = [int((file.parent / "max_energy_range_uj").read_text(encoding="ascii")) for file in self._files]
        self._last = self._read()
        self._joules = 0.0

    def joules(self) -> float:
        """Joules so far. Read it every few minutes: a counter may start anew once in between, and not twice."""
        now = self._read()
        for before, after, most in zip(self._last, now, self._most, strict=True):
            self._joules += (after - before if after >= before else after + most - before) / 1e6
        self._last = now
        return self._joules

    def _read(self) -> list[int]:
        return [int(file.read_text(encoding="ascii")) for file in self._files]
