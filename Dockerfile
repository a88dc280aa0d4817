# The command `engram` as an image:
#
#   docker build --tag engram .
#   docker run --rm --volume "$PWD/runs:/runs" engram reproduce --quick
#
# Run folders go to the volume /runs, which is the working folder.

FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /source
COPY . .
# The cache keeps compiled dependencies between builds of the image.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --release --locked \
    && cp target/release/engram /usr/local/bin/engram

FROM debian:bookworm-slim
COPY --from=build /usr/local/bin/engram /usr/local/bin/engram
COPY LICENSE-APACHE LICENSE-MIT NOTICE /usr/share/doc/engram/
RUN useradd --create-home --uid 1000 engram \
    && mkdir /runs \
    && chown 1000:1000 /runs
USER 1000:1000
WORKDIR /runs
VOLUME /runs
ENTRYPOINT ["engram"]
CMD ["--help"]
