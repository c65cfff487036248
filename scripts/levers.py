"""What each lever of speed gives: `python -m scripts.levers`; see `scripts.benchmark.levers`."""

from scripts.benchmark.levers import main

if __name__ == "__main__":
    main()
