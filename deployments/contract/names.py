"""Names that processes share: the deployments that every application has, and words that several of them say."""

INGRESS, TRANSFORMER, COMBINER, LABELER = "Ingress", "JpegTransformer", "Combiner", "Labeler"
# What the log has where a change of `user_config` is refused; `ensemble deploy` looks for it there.
REFUSED = "user_config refused"
# What a client hears that compresses a message: from HAProxy by its headers, from a replica by the message itself.
COMPRESSED = "messages must not be compressed; set no compression, images are compressed already"
# The environment variable that says of a process which `ensemble serve` has started it.
MARK = "ENSEMBLE_SERVED_BY"
# So many values of a metric's tag have series of their own, the first ones that come; the rest have one together.
MOST_VALUES, OTHER = 100, "other"
