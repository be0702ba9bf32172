"""Sharded parameters: the same numbers as on one process, on 2, 3 and 4 ranks, with uneven and empty shards.

The network is 3-8-1: its second weight, 1 × 8, lies on one rank, and 8 rows do not divide by 3.
"""

import math
from functools import cache

import cases
import numpy as np
import pytest
import torch
from group import run

import tether
from tether.sharded.pieces import Piece, across, block_of

LIMITS = {torch.float64: 1e-6, torch.float32: 2e-5}
CASES = {
    2: [(name, "columns", torch.float64) for name in cases.METHODS]
    + [(name, "fsdp", torch.float32) for name in cases.METHODS],
    3: [(name, "rows", torch.float64) for name in cases.METHODS],
    4: [(name, how, torch.float64) for how in ("hsdp", "fsdp", "tensor parallel") for name in cases.METHODS],
}
JOBS = ("messages", "ddp", "on_a_device", "fallbacks", "trouble", "constrained", "mixed", "exchanged", "refused")


@cache
def everything(world):
    """All that the ranks of a group do in this file, in one go; their start takes longer than most of it."""
    jobs = [("noise",), ("methods", CASES[world]), ("costs",), *([(job,) for job in JOBS] if world == 3 else [])]
    return run(world, cases.several, *jobs)


def result(world, job):
    """What each rank returns for a job."""
    at = ("noise", "methods", "costs", *JOBS).index(job)
    return [found[at] for found in everything(world)]


@pytest.mark.parametrize("world", CASES)
def test_noise_has_the_bits_of_one_process(world):
    assert all(result(world, "noise"))


@pytest.mark.parametrize(("world", "case"), [(world, case) for world in CASES for case in CASES[world]])
def test_twenty_steps_lead_where_one_process_leads(world, case):
    for found in result(world, "methods"):
        assert case in found, "an earlier case has failed"
        assert not isinstance(found[case], str), found[case]
        far, violation = found[case]
        assert far <= LIMITS[case[2]]
        assert violation <= 1e-6


def test_one_small_message_and_one_more_for_all_thermostats():
    for found in result(3, "messages"):
        for name in ("sgd", "langevin", "circle_cola_ud"):
            assert found[name] == ([1], 0)
        assert found["two thermostats"] == ([1, 2], 0)
        flag, column, *grams = found["orthogonal_cola_ud"][0]
        assert (flag, column) == (1, 3)  # 8 × 3, cut along its long side
        assert set(grams) == {9}
        assert len(grams) <= 10
        assert found["orthogonal_cola_ud"][1] == 2  # 1 × 8, in and out
        assert found["sphere by columns"] == ([1], 4)  # two shapes, in and out


@pytest.mark.parametrize("world", CASES)
def test_costs_are_what_is_counted(world):
    for found in result(world, "costs"):
        assert len(found) == 4
        for counted, predicted in found:
            assert counted == predicted


def test_a_cost_by_hand():
    """Four matrices of 6 × 6 on 3 ranks: blocks of 2 × 6, two matrices for the busiest rank; θ, p, g in, θ, p out."""
    named = [(f"{i}.weight", torch.empty(6, 6, device="meta")) for i in range(4)]
    orthogonal, finite = tether.sharded.cost(named, [tether.Part("*", on=tether.Orthogonal(), word="OBA")], 3)
    assert orthogonal.bytes == 4 * (3 * 4 * 12 + 2 * 2 * 36 + 3)
    assert orthogonal.messages == 2
    assert orthogonal.operations == 2 * 1 * 5 * 4 * 6**3
    assert finite == ("finite gradients", 0.0, 4, 1)


def test_a_cost_by_hand_along_the_long_side():
    """Two matrices of 9 × 2 on 3 ranks: the longest column, 4 Gram matrices, momenta turned after A and O."""
    named = [(f"{i}.weight", torch.empty(9, 2, device="meta")) for i in range(2)]
    orthogonal, _ = tether.sharded.cost(named, [tether.Part("*", on=tether.Orthogonal(), word="OBA")], 3)
    assert orthogonal.bytes == 4 * 2 * (2 + 4 * (4 + 2))
    assert orthogonal.messages == 1 + 4 + 2
    assert orthogonal.operations == 2 * 5 * 4 * 3 * 2**2


def test_data_parallel_ranks_lead_where_one_process_leads():
    assert max(result(3, "ddp")) <= 1e-12


def test_a_nan_on_one_rank_is_refused_by_all():
    for rank, found in enumerate(result(3, "trouble")):
        assert "'0.weight' (1 nan and 0 inf of 24)" in found["raise"]
        assert found["skip"] == 1
        assert found["moved"] == 0
        assert ("this rank only" if rank == 1 else "another rank could not use its gradients") in found["one rank"]


def test_constraints_of_other_optimizers():
    for found in result(3, "constrained"):
        assert all(far <= 1e-12 for far, *_ in found.values())
        assert found["circle"][1] <= 0.3 + 1e-9
        assert found["circles"][1] <= 0.3 + 1e-9
        assert found["sphere"][2] <= 0.5 + 1e-9
        assert found["orthogonal"][3] <= 1e-9


def test_parameters_that_were_sharded_after_the_optimizer_was_made():
    for found in result(3, "exchanged"):
        assert max(found.values()) <= 1e-12


def test_plain_parameters_beside_sharded_ones():
    assert max(result(3, "mixed")) <= 1e-12


def test_refusals_say_what_to_do():
    for found in result(3, "refused"):
        assert "use DDP" in found["path"]
        assert "leave it whole" in found["level"]
        assert "leave it whole" in found["whole"]
        assert "leave it whole" in found["ball"]
        assert "use batch_dims=0" in found["replicas"]
        assert "Shard(0)" in found["sphere"]


def test_a_checkpoint_of_four_ranks_goes_on_with_two_and_with_one(tmp_path):
    for saved, resumed in (("fsdp", "columns"), ("columns", "fsdp")):
        folder = str(tmp_path / saved)
        wanted = run(4, cases.save, folder, saved)[0]
        for world, how in ((2, resumed), (1, "plain")):
            found = run(world, cases.resume, folder, how)[0]
            far = {
                name: max(np.abs(wanted[name][key] - found[name][key]).max() for key in found[name]) for name in found
            }
            assert far.keys() == set(cases.SAVED)
            assert max(far.values()) <= 1e-12, far


def test_a_host_that_may_not_look_at_numbers():
    for rank, found in enumerate(result(3, "on_a_device")):
        assert len(found) == 10
        for far, moved, said in found.values():
            assert far <= 1e-12
            assert moved == 0
            assert ("0.weight" if rank == 1 else "another rank") in said


def test_long_steps_take_the_polar_factor_and_one_without_full_rank_is_refused_by_all():
    for found in result(3, "fallbacks"):
        for how in ("rows", "columns"):
            far, count = found[how]
            assert far <= 1e-12
            assert count > 0
        said, moved = found["rank"]
        assert "rank" in said
        assert moved == 0


class Shard:
    def __init__(self, dim):
        self.dim = dim


class Strided(Shard):
    split_factor = 2


def test_blocks_by_hand():
    assert [block_of((5, 3), (3,), [Shard(0)], [i]) for i in range(3)] == [
        ((0, 0), (2, 3)),
        ((2, 0), (2, 3)),
        ((4, 0), (1, 3)),
    ]
    assert block_of((1, 3), (4,), [Shard(0)], [2]) == ((1, 0), (0, 3))
    # 8 rows: fully_shard on what tensor parallelism has cut; the table is in torch's docstring of strided shards
    found = [block_of((8,), (2, 2), [Strided(0), Shard(0)], [i, j]) for i in range(2) for j in range(2)]
    assert found == [((0,), (2,)), ((4,), (2,)), ((2,), (2,)), ((6,), (2,))]


def test_a_transposed_matrix_is_cut_along_the_other_axis():
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard as Cut
    from torch.distributed.tensor.placement_types import _StridedShard

    assert [across(one) for one in (Cut(0), Cut(1), Replicate())] == [Cut(1), Cut(0), Replicate()]
    assert across(_StridedShard(0, split_factor=2)) == _StridedShard(1, split_factor=2)


def test_runs_are_the_entries_of_a_block():
    index = torch.arange(math.prod((4, 3, 5))).view(4, 3, 5)
    for offset, sizes in (
        ((1, 0, 0), (2, 3, 5)),
        ((1, 1, 0), (2, 2, 5)),
        ((0, 1, 2), (4, 2, 2)),
        ((4, 0, 0), (0, 3, 5)),
    ):
        piece = Piece((4, 3, 5), offset, sizes, {0, 1, 2})
        entries = [first + i for first, count in piece.runs for i in range(count)]
        assert entries == index[piece.slices].flatten().tolist()
    assert len(Piece((4, 3, 5), (1, 0, 0), (2, 3, 5), {0}).runs) == 1


def test_importing_tether_does_not_import_dtensors():
    import subprocess
    import sys

    code = "import sys, tether; print('torch.distributed.tensor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
