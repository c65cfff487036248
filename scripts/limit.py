"""What the models allow: `python -m scripts.limit`; see `scripts.benchmark.limit`."""

from scripts.benchmark.limit import main

if __name__ == "__main__":
    main()
