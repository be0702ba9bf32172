"""Process groups on this machine: one function run by several ranks, with a time limit, so that a hang fails."""

import multiprocessing
import os
import queue
import tempfile
import time
import traceback
from datetime import timedelta

import torch

LIMIT = 30  # seconds that a rank waits for the others


def entry(rank, world, folder, results, job, arguments):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist = torch.distributed
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=LIMIT))
    try:
        results.put((rank, job(rank, world, *arguments), None))
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
    finally:
        dist.destroy_process_group()


def run(world, job, *arguments, seconds=150):
    """What each rank returns, in their order."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch", "tether", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict"]
    )
    results, found, end = context.Queue(), {}, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        rest = (folder, results, job, arguments)
        ranks = [context.Process(target=entry, args=(rank, world, *rest)) for rank in range(world)]
        for one in ranks:
            one.start()
        try:
            while len(found) < world:
                rank, value, trouble = results.get(timeout=max(end - time.monotonic(), 0.1))
                if trouble is not None:
                    raise AssertionError(f"rank {rank} of {world}:\n{trouble}")
                found[rank] = value
        except queue.Empty:
            raise AssertionError(f"{world - len(found)} of {world} ranks hang") from None
        finally:
            for one in ranks:
                one.join(2 if len(found) == world else 0.1)
                if one.is_alive():
                    one.kill()
    return [found[rank] for rank in range(world)]
