"""Names that processes share: the deployments that every application has, and words in the logs."""

from __future__ import annotations

INGRESS, TRANSFORMER, COMBINER, LABELER = "Ingress", "JpegTransformer", "Combiner", "Labeler"
# What the log has where a change of `user_config` is refused; `ensemble deploy` looks for it there.
REFUSED = "user_config refused"
