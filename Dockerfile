# The service with the bundled models, not as root, in one process: configs/container.yaml.
#
#     docker build --tag ensemble . && docker run --rm --shm-size 1g -p 127.0.0.1:8000:8000 -p 127.0.0.1:9000:9000 ensemble
#
# For other processors, too: docker buildx build --platform linux/amd64,linux/arm64 .  (docs/conditions.md: what was tried on ARM)
#
# A repository in a bucket needs a client: --build-arg EXTRAS=s3 (or gs, az, hf; several with commas). Versions of the client's
# packages are the newest that fit requirements.lock; pip does not compare their hashes.
#
# Or with Jaeger, Prometheus and Grafana beside it: docker compose --file configs/compose.yaml up
# Another one needs Python 3.11 or newer, with venv.
ARG BASE=python:3.13-slim-bookworm
FROM ${BASE} AS build
RUN python -m venv /opt/ensemble
WORKDIR /source
# Apart from the code, so that a change of the code does not fetch them anew.
COPY requirements.lock .
RUN /opt/ensemble/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement requirements.lock
COPY . .
RUN /opt/ensemble/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps ./packages/client ./packages/models ./packages/capacity . $(dirname ./packages/plugins/*/pyproject.toml)
ARG EXTRAS=
RUN if [ -n "$EXTRAS" ]; then sed -n 's/^\([^ ]*==[^ ]*\).*/\1/p' requirements.lock > /tmp/pinned && \
    /opt/ensemble/bin/pip install --no-cache-dir --disable-pip-version-check --constraint /tmp/pinned ".[$EXTRAS]"; fi

FROM ${BASE}
# A number, so that Kubernetes' runAsNonRoot accepts it; whoever a cluster runs it as is in group 0, which may write.
RUN useradd --create-home --uid 1000 --gid 0 ensemble && chmod -R g=u /home/ensemble
COPY --from=build /opt/ensemble /opt/ensemble
ENV PATH=/opt/ensemble/bin:$PATH
USER 1000
ENV HOME=/home/ensemble
WORKDIR /home/ensemble
EXPOSE 8000 9000
HEALTHCHECK --start-period=90s --interval=10s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=5)"]
# Who may reach it is said where its ports are published; with keys, name a configuration of your own instead.
CMD ["ensemble", "serve", "--without-keys", "/opt/ensemble/share/ensemble-serving/configs/container.yaml"]
