"""Tests of clusters of several machines, each a network namespace with an address of its own."""
