# syntax=docker/dockerfile:1
# docker build --build-arg VARIANT=cpu|cuda12|cuda13 .          nothing in it needs a shell once it is built
ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
ARG VARIANT=cpu
WORKDIR /src
# Modules that every document passes are compiled; the compiler stays in this stage, and nothing that it links is new.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# The dependencies get a layer of their own, which a change of the code does not touch.
COPY deploy/docker/install deploy/docker/requirements-*.txt deploy/docker/
RUN deploy/docker/install dependencies "${VARIANT}" /opt/sidetok
COPY . .
RUN SIDETOK_COMPILE=1 deploy/docker/install program /opt/sidetok \
    && deploy/docker/install kernels "${VARIANT}" /opt/sidetok /var/cache/sidetok/kernels

FROM python:${PYTHON}
ARG VARIANT=cpu
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sidetok" \
      org.opencontainers.image.description="Exact, fast tokenization as a service (${VARIANT})" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}-${VARIANT}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent sidetok \
    && install -d -o sidetok -g sidetok /run/sidetok
COPY --from=build /opt/sidetok /opt/sidetok
COPY --from=build --chown=10001:10001 /var/cache/sidetok /var/cache/sidetok
# The driver's libraries come from the host, and CuPy keeps kernels where a read-only container can write.
ENV PATH=/opt/sidetok/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    CUPY_CACHE_DIR=/var/cache/sidetok/kernels \
    SIDETOK_CACHE_DIR=/var/cache/sidetok \
    SIDETOK_HOST=0.0.0.0 \
    SIDETOK_UDS=/run/sidetok/sidetok.sock \
    SIDETOK_LOG_FORMAT=json
USER 10001:10001
EXPOSE 8400
VOLUME ["/run/sidetok", "/var/cache/sidetok"]
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-m", "deploy.docker.healthcheck"]
ENTRYPOINT ["sidetok"]
CMD ["serve"]
