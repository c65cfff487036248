"""Runs `ensemble quantize` by its older name, `python -m scripts.quantize`; see `scripts.prepare.quantize`."""

from scripts.prepare.quantize import main

if __name__ == "__main__":
    main()
