"""The parser of a command line."""

import argparse


def described(doc: str | None, prog: str | None = None) -> argparse.ArgumentParser:
    """Make a parser whose `--help` shows a docstring as it is; `prog` is a command that `ensemble` does not set."""
    return argparse.ArgumentParser(prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
