# Driver and executors of Spark on Kubernetes. From the folder of this repository:
#
#   docker build -f packaging/docker/spark.Dockerfile -t registry/icefloe-spark .
#
# Spark and Java are those of the base image. Its Python is 3.10, too old for icefloe, so the image
# gets a Python of its own. Driver and executors must have the same one.
FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM apache/spark:4.1.2-scala2.13-java21-python3-ubuntu
ARG PYTHON=3.12
ARG EXTRAS=xarray,hdf5
USER 0
COPY --from=build /wheels /wheels
ENV UV_PYTHON_INSTALL_DIR=/opt/python
# The extra `spark` would install a second Spark and a second Java. Of its packages, the base image
# lacks pandas and xarray.
RUN python3 -m pip install --no-cache-dir uv==0.13.8 \
    && uv venv --no-cache --python "$PYTHON" /opt/icefloe \
    && uv pip install --no-cache --python /opt/icefloe/bin/python \
        "$(echo /wheels/*.whl)[$EXTRAS]" "pandas>=2.2.3" "xarray>=2025.10.1"
ENV PYSPARK_PYTHON=/opt/icefloe/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/icefloe/bin/python
# The user `spark` of the base image; Kubernetes checks `runAsNonRoot` by number.
USER 185
