"""A real `vllm serve` on the CPU, and a way for weights to reach it without CUDA."""

import os
import subprocess
import sys
import time
from pathlib import Path

import requests
from safetensors.torch import save_file
from trl.generation.vllm_client import VLLMClient

DIFFERENCE = "sampling/sampling_logp_difference/mean"


def copy_folder(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())


def logs_of(trainer, name):
    """The values of a metric, by step."""
    return [log[name] for log in trainer.state.log_history if name in log]


class VLLMProcess:
    """Serves the model in `folder` on loopback.

    TRL sends weights by NCCL, which needs CUDA. In its place, for tests alone: the served folder gets the weights and
    the server reads it again. `transfer` installs that in TRL's client. On a CPU vLLM 0.31 keeps the packed copy of an
    LM head that is tied to the embeddings through this, so a model that learns much must have a head of its own.
    """

    def __init__(self, folder: Path, port: int, max_model_len: int = 1024, dtype: str = "float32"):
        self.folder, self.port, self.url = folder, port, f"http://127.0.0.1:{port}"
        self.arguments = ["--max-model-len", str(max_model_len), "--dtype", dtype]
        # Of a trainer that generates with it.
        self.options = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": self.url}
        self.process = None

    def start(self, timeout: float = 600) -> None:
        command = [
            str(Path(sys.executable).with_name("vllm")), "serve", str(self.folder), "--host", "127.0.0.1", "--port",
            str(self.port), "--enforce-eager", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1",
            *self.arguments,
        ]  # fmt: skip
        # One thread and no binding to a core: the trainer needs the rest.
        cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        with open(self.folder / "server.log", "w") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, "VLLM_SERVER_DEV_MODE": "1", **cpu}, stdout=log, stderr=log
            )
        deadline = time.monotonic() + timeout
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"vllm serve did not start:\n{(self.folder / 'server.log').read_text()[-5000:]}")
            time.sleep(1)

    def _healthy(self) -> bool:
        try:
            return requests.get(f"{self.url}/health", timeout=5).ok
        except requests.RequestException:
            return False

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def transfer(self, monkeypatch) -> None:
        """Lets TRL's client send weights to this server through its folder."""

        def update(client, metadata, named_params):
            weights = {name: weight.detach().clone().contiguous() for name, weight in named_params}
            save_file(weights, self.folder / "model.safetensors", metadata={"format": "pt"})
            client._post(f"{client.base_url}/collective_rpc", json={"method": "reload_weights"})

        monkeypatch.setattr(VLLMClient, "init_communicator", lambda client, device: None)
        monkeypatch.setattr(VLLMClient, "update_named_params", update)
