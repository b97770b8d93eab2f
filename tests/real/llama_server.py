"""llama.cpp's server with a model on a free port: python llama_server.py FILE.gguf ADDRESS_FILE."""

import sys
import time
from pathlib import Path

import xllamacpp  # pyright: ignore[reportMissingImports]

if __name__ == "__main__":
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_ctx, params.n_parallel = 2048, 2
    # Several threads spin while they wait for each other: minutes, on a busy machine.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.hostnames, params.port = ["127.0.0.1"], 0
    server = xllamacpp.Server(params)
    aside = Path(sys.argv[2] + ".part")
    aside.write_text(server.listening_address)
    aside.rename(sys.argv[2])
    while True:
        time.sleep(3600)
