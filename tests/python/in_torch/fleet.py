# tests/python/in_torch/fleet.py — several processes with one process group, which run functions together
"""What tests over ranks run in."""

import os
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


class Fleet:
    """So many ranks, each a process with one thread. `run` calls a function of a module on all of them. `device` is
    "cpu", or "cuda" for a GPU each, and a process group of NCCL."""

    def __init__(self, count, folder, device="cpu"):
        context = multiprocessing.get_context("spawn")
        self.count, self.device = count, device
        self._orders = [context.Queue() for _ in range(count)]
        self._results = context.Queue()
        args = count, device, str(folder / "meet")
        self.processes = [context.Process(target=_serve, args=(rank, *args, orders, self._results), daemon=True)
                          for rank, orders in enumerate(self._orders)]
        for process in self.processes:
            process.start()

    def run(self, function, *args, ranks=None, seconds=120):
        """What function(rank, *args) gives on each rank, or the text of what it raised. `ranks`: whose results count."""
        for orders in self._orders:
            orders.put((function, args))
        found, until = {}, time.monotonic() + seconds
        while len(found) < (self.count if ranks is None else len(ranks)):
            rank, good, made = self._results.get(timeout=max(0.1, until - time.monotonic()))
            assert good, f"rank {rank}:\n{made}"
            found[rank] = made
        return [found[rank] for rank in sorted(found)]

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(20)


def _serve(rank, count, device, meet, orders, results):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if device == "cuda":
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast can take GPUs of a shared host out of service
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=f"file://{meet}", rank=rank,
                            world_size=count, timeout=timedelta(seconds=60))
    while True:
        function, args = orders.get()
        try:
            results.put((rank, True, function(rank, *args)))
        except BaseException:
            results.put((rank, False, traceback.format_exc()))
