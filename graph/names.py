"""The deployments that every application has, and the names of their nodes."""

from __future__ import annotations

INGRESS, TRANSFORMER, COMBINER, LABELER = "Ingress", "JpegTransformer", "Combiner", "Labeler"
