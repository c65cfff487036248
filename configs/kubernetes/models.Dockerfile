# An image with models of your own, for `args: {model_repository: /models}`: `models` is what `ensemble prepare` wrote.
#
#     docker build --file models.Dockerfile --build-arg IMAGE=ensemble:0.1.0 --tag ensemble-mine:1 .
ARG IMAGE=ensemble:0.1.0
FROM ${IMAGE}
COPY models /models
