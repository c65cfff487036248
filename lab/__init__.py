"""What measures: benchmarks, loads, faults and experiments; left out of the wheel."""
