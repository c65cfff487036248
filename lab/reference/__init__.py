"""The reference pages, made of the code."""
