# Covey in a container, for the CPU:
#
#   docker build -t covey .
#   docker run --rm -it --init -v "$PWD:/work" --user "$(id -u):$(id -g)" covey train run_name=first
#
# For NVIDIA GPUs, which nobody has tried yet: PyTorch's default build for Linux brings CUDA along, so the image needs
# only that one, and the machine NVIDIA's container toolkit:
#
#   docker build -t covey:cuda --build-arg TORCH_INDEX= .
#   docker run --rm -it --init --gpus all --shm-size 8g -v "$PWD:/work" --user "$(id -u):$(id -g)" covey:cuda train
FROM python:3.11-slim

# Triton compiles its launchers at run time, on GPUs; the sandbox for code that the model writes uses bubblewrap.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bubblewrap gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*

# An additional package index, with PyTorch's build for the CPU; empty for the default build.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Extras of pyproject.toml, as in EXTRAS=wandb,kaggle. Not vllm, which needs an image of its own.
ARG EXTRAS=

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
    ".${EXTRAS:+[$EXTRAS]}"

# Runs belong to the user who starts them (--user), whom the image does not know: a home that anybody can write to.
ENV HOME=/tmp USER=covey
USER 1000:1000
WORKDIR /work
STOPSIGNAL SIGINT
ENTRYPOINT ["covey"]
CMD ["--help"]
