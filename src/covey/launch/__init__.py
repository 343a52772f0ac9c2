"""Launching a run on a laptop, on a node with a vLLM server on some of its GPUs, or on a Slurm cluster.

`plan` is pure: config and machine in; processes, environments, ports and files out. `slurm` renders a job script.
`execute` runs and supervises the processes of a plan. Nothing here imports torch.
"""
