# syntax=docker/dockerfile:1
# neuronserve: the server, the default model, and kernels compiled for each level of x86-64 (see docs/guides/deploy.md).
#
# The base may be any Debian-like image with `python` 3.11 or newer on its PATH and glibc; both stages use it, because the
# virtual environment is copied from one to the other. The digest is of the index of all platforms;
# `docker buildx imagetools inspect python:3.11-slim-bookworm` prints the newest.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b

FROM ${PYTHON_IMAGE} AS build
# Whole seconds, because image layers may keep no fractions, and Numba compares the times of sources with its index.
ARG SOURCE_DATE_EPOCH=1767225600
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
RUN python -m venv /opt/venv
COPY requirements.lock requirements-build.lock ./
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/venv/bin/python -m pip install --require-hashes --only-binary :all: --no-compile -r requirements.lock
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /opt/build \
    && /opt/build/bin/python -m pip install --require-hashes --only-binary :all: -r requirements-build.lock
# Extras of pyproject.toml, such as `ray,pick`. What only they need is neither pinned nor checked by a hash.
ARG EXTRAS=
COPY pyproject.toml PACKAGE.md LICENSE ./
COPY neuronserve ./neuronserve
COPY server ./server
COPY planner ./planner
COPY console ./console
COPY testkit ./testkit
COPY workload ./workload
COPY loadtests ./loadtests
RUN /opt/build/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/venv/bin/python -m pip install --no-deps --no-index --no-compile /wheels/*.whl \
    && if [ -n "${EXTRAS}" ]; then \
        /opt/venv/bin/python -m pip freeze --exclude neuronserve > /tmp/locked \
        && /opt/venv/bin/python -m pip install --only-binary :all: --no-compile --constraint /tmp/locked \
            "neuronserve[${EXTRAS}] @ file://$(echo /wheels/*.whl)"; fi \
    && /opt/venv/bin/python -m pip uninstall --yes pip setuptools \
    && mkdir -p /opt/venv/share/neuronserve \
    && /opt/build/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
        --output-file /opt/venv/share/neuronserve/sbom.cdx.json /opt/venv/bin/python \
    && rm -rf /src/*/ \
    && find /opt/venv -name tests -path '*/site-packages/*' -type d -prune -exec rm -rf {} + \
    && find /opt/venv -exec touch --no-dereference --date "@${SOURCE_DATE_EPOCH}" {} +
COPY tools/__init__.py tools/precompile.py ./tools/
RUN /opt/venv/bin/python -m tools.precompile \
    && /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib \
    && find /opt/venv -newermt "@${SOURCE_DATE_EPOCH}" -exec touch --no-dereference --date "@${SOURCE_DATE_EPOCH}" {} +


FROM ${PYTHON_IMAGE}
ARG PYTHON_IMAGE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="neuronserve" \
      org.opencontainers.image.description="OpenAI-compatible LLM server for Inferentia-class devices, emulated on the host CPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# Group 0 owns what must be writable, so that any user id in group 0 may run this (as OpenShift does). Nothing else is
# written: /cache and /tmp are volumes, and the root file system may be read-only.
RUN mkdir -p /cache/kernels /cache/huggingface \
    && chgrp -R 0 /cache && chmod -R g=u /cache
COPY --from=build /opt/venv /opt/venv
COPY deploy/healthcheck.py /opt/healthcheck.py
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    HF_HUB_DISABLE_TELEMETRY=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NEURONSERVE_HOST=0.0.0.0 \
    NEURONSERVE_PORT=8000 \
    NEURONSERVE_KERNEL_CACHE_DIR=/cache/kernels
VOLUME ["/cache", "/tmp"]
EXPOSE 8000
USER 10001:0
WORKDIR /tmp
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
    CMD ["python", "/opt/healthcheck.py"]
ENTRYPOINT ["neuronserve"]
CMD ["serve"]
