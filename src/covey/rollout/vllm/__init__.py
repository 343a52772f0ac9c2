"""vLLM as a generation engine: in this process, as a server, and with a reasoning vocabulary."""
