"""TensorFlow Serving's API: the ensemble as a servable, over REST and gRPC."""
