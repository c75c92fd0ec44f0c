# How the client gets into a training image, from the repository's root:
#
#   docker build -f deploy/docker/trainer.Dockerfile -t trainer .
#
# The last FROM is the image that you train in: anything with Python 3 and torch. The library is compiled where its compiler is, and only the wheel goes over.
FROM nvidia/cuda:12.8.1-devel-ubuntu24.04 AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake g++ libeigen3-dev libhwy-dev ninja-build pkg-config python3-pip \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheels ./client/python

FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links=/wheels lossgauge && rm -rf /wheels
WORKDIR /job
COPY client/python/examples/train_toy.py train.py
USER 10001:10001
CMD ["python3", "train.py"]
