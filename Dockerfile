# The two commands of the README in a container: docker build -t popdist . && docker run -it popdist
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /popdist
COPY . .
RUN make demo
ENV PATH=/popdist/.venv/bin:$PATH
CMD ["bash"]
