# lossgauged and lossgaugectl, from the repository's root:
#
#   docker build -f deploy/docker/lossgauged.Dockerfile -t lossgauge:0.1.0 .
#
# Built on the Debian whose packages it then runs on; the second stage has no compiler and runs as nobody in particular. It needs no GPU.
FROM debian:12 AS build
WORKDIR /source
COPY deploy/setup.sh deploy/
# What cpack needs to see which libraries the package depends on.
RUN deploy/setup.sh --build \
    && apt-get install -y --no-install-recommends dpkg-dev file \
    && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset cpu -DLOSSGAUGE_BUILD_TESTS=OFF -DLOSSGAUGE_BUILD_BENCHMARKS=OFF -DLOSSGAUGE_BUILD_EXAMPLES=OFF \
    && cmake --build --preset cpu \
    && cpack -G DEB --config build/cpu/CPackConfig.cmake -B /packages \
    && rm -rf build

FROM debian:12-slim
COPY --from=build /packages/lossgauged_*.deb /packages/
# The package's unit and user are for hosts with systemd; here the image says who runs it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends /packages/*.deb \
    && rm -rf /packages /var/lib/apt/lists/* \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/lossgauge /rings
USER 10001:10001
VOLUME /var/lib/lossgauge
EXPOSE 9788 9789
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/lossgauged"]
CMD ["sidecar", "--ring_dir=/rings", "--state_dir=/var/lib/lossgauge", "--http_listen=0.0.0.0:9788", "--grpc_listen=0.0.0.0:9789", "--log_format=json"]
