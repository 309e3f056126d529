# The steps of the Makefile in an image, with an environment of its own in .venv.
#
# CPU:   docker build -t structured-sir --build-arg TORCH_INDEX=<index with the CPU builds of torch> .
# CUDA:  docker build -t structured-sir --build-arg BASE=nvidia/cuda:12.8.1-base-ubuntu24.04 .
# Run:   docker run --rm -v "$PWD/scans:/scans" structured-sir run inference --config_file configs/inference.json \
#          --fixed /scans/fixed.nii.gz --moving /scans/moving.nii.gz --output_dir /scans/output
#        (with a GPU: docker run --gpus all …; the folder must be writable for user 1000)
#
# torch's usual Linux build carries the CUDA libraries itself, so that only the driver has to come from outside; the
# index of its CPU builds makes an image that is several gigabytes smaller.

ARG BASE=debian:12.12-slim
FROM ${BASE}

# Debian removes old versions from its mirrors: a pinned one would soon not build.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev make python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*

ARG TORCH_INDEX=""
WORKDIR /opt/structured-sir
COPY Makefile requirements.txt ./
# To run as somebody who owns nothing but this folder, for its `output`. What numba compiles goes to the user's cache
# folder, below HOME (see scripts/core/cache.py).
RUN PIP_EXTRA_INDEX_URL="${TORCH_INDEX}" PIP_NO_CACHE_DIR=1 make setup && chown 1000:1000 .
COPY --chown=1000:1000 LICENSE README.md CHANGELOG.md ./
COPY --chown=1000:1000 bundle bundle
COPY --chown=1000:1000 configs configs
COPY --chown=1000:1000 docs docs
COPY --chown=1000:1000 models models
COPY --chown=1000:1000 scripts scripts
USER 1000:1000
ENV HOME=/tmp PYTHONUNBUFFERED=1

ENTRYPOINT [".venv/bin/python", "-m", "monai.bundle"]
CMD ["run", "inference", "--config_file", "configs/inference.json"]
