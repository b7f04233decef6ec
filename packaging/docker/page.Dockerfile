# The web page of a repository. From the folder of this repository:
#
#   docker build -f packaging/docker/page.Dockerfile -t icefloe-page .
#   docker run --rm -p 127.0.0.1:8765:8765 -v "$PWD/weather:/data:ro" icefloe-page /data
#
# The page has no password: publish its port on 127.0.0.1, as above, or put a proxy with a login
# in front of it. For a bucket, pass credentials with -e and the URL instead of /data.
FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[cli,aws]" \
    && useradd --uid 1000 --create-home reader
USER 1000
EXPOSE 8765
ENTRYPOINT ["icefloe", "ui", "--host", "0.0.0.0", "--port", "8765", "--no-browser"]
