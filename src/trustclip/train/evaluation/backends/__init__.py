"""Backends of evaluation: Transformers or vLLM in this process, or a server."""
