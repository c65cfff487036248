"""Injects faults into servers: `ensemble faults`, and with a name behind it one of the other campaigns."""

from __future__ import annotations

import sys

from lab.faults.fuzz.command import FUZZ
from lab.faults.history import HISTORY
from lab.faults.kills import KILLS
from lab.faults.refusals import REFUSALS
from lab.faults.scenarios import FAULTS

CAMPAIGNS = {each.name: each.main for each in (REFUSALS, KILLS, HISTORY, FUZZ)}


def main() -> None:
    """Run the campaign that the first argument names, or else the scenarios."""
    if campaign := CAMPAIGNS.get("".join(sys.argv[1:2])):
        campaign(sys.argv[2:])
    else:
        FAULTS.main(sys.argv[1:])


if __name__ == "__main__":
    main()
