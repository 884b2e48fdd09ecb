# The README's two commands in a container: docker build -t popdist . && docker run -it popdist
# Inside, `make test` runs the tests.
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /popdist
COPY . .
RUN make demo
ENV PATH=/popdist/.venv/bin:$PATH
CMD ["bash"]
