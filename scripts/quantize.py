"""Quantizes a model of the repository to int8: `python -m scripts.quantize`; see `scripts.prepare.quantize`."""

from scripts.prepare.quantize import main

if __name__ == "__main__":
    main()
