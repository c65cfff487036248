"""Injects faults into servers: `ensemble faults`, and with a name behind it one of the other campaigns."""

from __future__ import annotations

import sys

from lab.faults import history, kills, refusals, scenarios
from lab.faults.fuzz import command as fuzz

CAMPAIGNS = {"refusals": refusals.main, "kills": kills.main, "history": history.main, "fuzz": fuzz.main}


def main() -> None:
    """Run the campaign that the first argument names, or else the scenarios."""
    if campaign := CAMPAIGNS.get("".join(sys.argv[1:2])):
        campaign(sys.argv[2:])
    else:
        scenarios.main(sys.argv[1:])


if __name__ == "__main__":
    main()
