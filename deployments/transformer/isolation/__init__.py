"""Decoding in processes of their own: one that hangs or crashes is ended and replaced, and costs its image alone."""
