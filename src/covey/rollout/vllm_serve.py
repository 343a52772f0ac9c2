"""The former path of `covey.rollout.vllm.serve`, used in documented commands."""

import sys

from covey.rollout.vllm.serve import Instance, main

__all__ = ["Instance", "main"]

if __name__ == "__main__":
    sys.exit(main())
