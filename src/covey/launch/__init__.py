"""Starting a run: on a laptop, on a node with vLLM on some of its GPUs, on a cluster.

`plan` is pure: config and machine in, processes, environments, ports and files out. `slurm` renders a job. `execute`
starts what a plan holds, watches it and ends it. Nothing here imports torch.
"""
