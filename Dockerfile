# syntax=docker/dockerfile:1

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/sidetok
# The dependencies get a layer of their own, which a change of the code does not touch.
COPY pyproject.toml README.md LICENSE ./
COPY service/__init__.py service/__init__.py
RUN /opt/sidetok/bin/pip install --no-cache-dir . && /opt/sidetok/bin/pip uninstall -y sidetok
COPY . .
RUN /opt/sidetok/bin/pip install --no-cache-dir --no-deps .

FROM python:3.12-slim
RUN useradd --uid 10001 --create-home sidetok && install -d -o sidetok -g sidetok /run/sidetok
COPY --from=build /opt/sidetok /opt/sidetok
ENV PATH=/opt/sidetok/bin:$PATH \
    SIDETOK_HOST=0.0.0.0 \
    SIDETOK_UDS=/run/sidetok/sidetok.sock \
    SIDETOK_LOG_FORMAT=json
USER 10001
EXPOSE 8400
VOLUME /run/sidetok
HEALTHCHECK --interval=30s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8400/ready', timeout=2)"]
ENTRYPOINT ["sidetok"]
CMD ["serve"]
