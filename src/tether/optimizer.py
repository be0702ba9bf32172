"""Optimizer: a table of parts that moves a model's parameters; torch's face of the engine."""

from __future__ import annotations

import inspect
import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from tether.engine import proposals, stages, steps, traced
from tether.engine.advice import warn_frozen, warn_unused
from tether.engine.alike import Gathering
from tether.engine.blocks import Lanes
from tether.engine.checkpoint import check_checkpoint, take_over, with_every_parameter
from tether.engine.commit import commit
from tether.engine.given import bare, param_groups, parameters_in, stacked, unnamed
from tether.engine.gradients import NonFiniteEnergy, NonFiniteGradient
from tether.engine.placed import Stack, place, write
from tether.engine.readings import acceptance, largest_violation, temperatures
from tether.engine.rows import Row
from tether.engine.table import table
from tether.engine.together import admitted, check_entrywise, check_replicas, check_together
from tether.engine.verdict import Verdict
from tether.noise import STREAM
from tether.part import DEFAULTS, Part, check, for_checkpoints, known_fields
from tether.rhythms import SHORT, rhythm_of
from tether.rhythms.waiting import give_back, left_waiting
from tether.sharded.exchanged import follow
from tether.sharded.ranks import admit_sharded, ranks_of
from tether.surfaces import Surface

__all__ = ["Clock", "NonFiniteEnergy", "NonFiniteGradient", "Optimizer"]

# keys of a param group that are no fields of a part: torch's, and what checkpoints keep beside the fields
OTHER_KEYS = {"params", "param_names", "seed", "step", "stream", "previous_lr", "stopped", "tested", "pace"}
OTHER_KEYS |= {"initial_lr"}


@lru_cache
def untraced() -> Callable[..., Any]:
    """The step as Python runs it, never traced by torch.compile."""
    return torch.compiler.disable(_move)


def _move(opt: Optimizer, closure: Callable[[], Any] | None) -> Any:
    """Read the table and step by it."""
    opt.settle()
    tested = several = False
    for row in opt.rows:  # one pass: there may be a row for each weight
        row.read()
        if row.entries:  # somebody may have set them since the optimizer was made
            check_replicas(row.group, opt.lanes)
            check_entrywise(row)
        tested = tested or row.rhythm.tested
        several = several or row.word.needs_closure
    if opt.awakened or opt.released or opt.alone or opt.verdict is not None or opt.plan is not None:
        steps.settle_first(opt)
    if tested:
        return proposals.propose(opt, closure)
    return stages.in_stages(opt, closure) if several else steps.at_once(opt, closure)


class Clock:
    """How many steps there have been, for those who must know without knowing the optimizer."""

    def __init__(self) -> None:
        self.step = 0


class Optimizer(torch.optim.Optimizer):
    """Moves each part of a model by its own word of letters.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
    >>> opt = Optimizer(model, [
    ...     Part("0.*", word="BACDEDCAB", temperature=1e-4),
    ...     Part("*", word="BAOAB", friction=0.5, temperature=1e-4),
    ... ], lr=0.25)
    >>> model(torch.ones(4, 2)).square().mean().backward()
    >>> opt.step()

    Args:
        params: a module, ``named_parameters()``, ``parameters()``, or torch param-group dicts, whose keys
            may be fields of a `Part`.
        parts: rows of the table; the first whose glob matches a parameter's name takes it. Without them one
            part takes everything.
        lr: the step size h of every part that does not set its own. Note that a word with momenta moves by
            h² per gradient: ``OBA`` equals ``torch.optim.SGD(lr=h**2, momentum=exp(-friction*h))``.
        seed: names the noise together with the step and the parameter; see `tether.noise`.
        batch_dims: 1 where the parameters hold replicas along their first axis, as those of `tether.Replicas` do: then
            noise, thermostats and surfaces are each replica's own, and a field may be a tensor with a number for each.
        on_nonfinite: ``"raise"`` (nothing moved) or ``"skip"`` the step when a gradient holds inf or nan.
        foreach: False applies every letter as it is written, one by one: slower, the same numbers to rounding. None
            is True.
        part_fields: defaults for the fields of every part, e.g. ``word="BAOAB", friction=1.0``.
    """

    method: str | None = None  # set by tether.methods, for the citation
    missed: Any = 0  # steps that were skipped; a tensor where a device has counted them
    bad: torch.Tensor | None = None  # does this step have a gradient that is not finite, as far as a device knows?
    plan: traced.Plan | None = None  # of a step that torch.compile has traced
    verdict: Verdict | None = None  # on the step before, where the host has not read it yet
    finite = False  # set by `tether.train` where the gradients of this step have been looked at already
    rows: list[Row]
    gathering: Gathering | None = None  # of parts that move as one

    def __init__(
        self,
        params: torch.nn.Module | Iterable[Any],
        parts: Sequence[Part] | None = None,
        *,
        lr: float | torch.Tensor,
        seed: int = 0,
        batch_dims: int | None = None,
        on_nonfinite: str = "raise",
        foreach: bool | None = True,
        **part_fields: Any,
    ) -> None:
        known_fields(part_fields, "Optimizer")
        if on_nonfinite not in ("raise", "skip"):
            raise ValueError(f"on_nonfinite={on_nonfinite!r} must be 'raise' or 'skip'")
        try:
            seed = operator.index(seed)
        except TypeError:
            raise TypeError(f"seed={seed!r} must be an int, e.g. seed=0") from None
        if batch_dims not in (None, 0, 1):
            raise ValueError(f"batch_dims={batch_dims!r} must be 0, or 1 where the first axis is replicas")
        # These are state, kept with the fields because torch saves those as they are; `stream` says whose noise it is.
        state = {"step": 0, "previous_lr": 0.0, "stopped": (), "stream": STREAM}
        defaults = {**DEFAULTS, "where": "*", **part_fields, "lr": lr, "seed": seed, **state}
        check(defaults)
        params = bare(params)
        groups = param_groups(params, parts, defaults)
        self.replicas = any(map(stacked, parameters_in(groups))) if batch_dims is None else bool(batch_dims)
        self.known_by_parameters = batch_dims is None  # then all must say the same
        self.on_nonfinite, self.reference = on_nonfinite, foreach is False
        self.lanes, self.clock, self.rows = Lanes(), Clock(), []
        self.ranks = ranks_of(parameters_in(groups))
        self.awakened = self.released = self.alone = False
        self.model = params if isinstance(params, torch.nn.Module) else None
        self.starts: list[tuple[Stack, torch.Tensor]] | None = []  # kept back until every part has been accepted
        super().__init__(groups, defaults)
        if all(row.rhythm.every > 1 for row in self.rows):
            raise ValueError("some part must move at every step: leave every=1 for the fastest")
        warn_unused(part_fields, parts or groups, self.param_groups)
        warn_frozen(self.param_groups)
        starts, self.starts = self.starts, None
        write(starts)
        for row in self.rows:
            self._begin(row)
        if self.state:  # of a rhythm: distributed checkpoints take it for a sign that there is nothing more to come
            for row in self.rows:
                row.make_state()
        self.alone = unnamed(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a part given as a torch param group; its keys may be fields of a `Part`."""
        if not isinstance(param_group, dict):
            raise TypeError(f"a param group is a dict with the key 'params', got {type(param_group).__name__}")
        known_fields((key for key in param_group if key not in OTHER_KEYS), "param group")
        group = {**self.defaults, **{key: value for key, value in param_group.items() if value is not None}}
        check(group)
        surface, metric = group["on"], group["metric"]
        rhythm = rhythm_of(f"part {group['where']!r}", group)
        if metric is not None and not metric.entrywise and self.model is None:
            raise ValueError(f"metric={metric!r} measures a network: pass the module itself, Optimizer(model, ...)")
        others = getattr(self, "param_groups", [])
        group = for_checkpoints(group, others)  # a checkpoint holds plain values only
        group |= {**SHORT, **rhythm.fields(), "on": repr(surface), "rhythm": repr(rhythm)}
        group["metric"] = None if metric is None else repr(metric)
        if others:
            group["step"], group["stopped"] = others[0]["step"], others[0]["stopped"]
        # as super().add_param_group, without torch's wrapper around it, which loads torch._dynamo: a second or two
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, group)
        added = self.param_groups.pop()
        give_back(left_waiting(added["params"]))
        names, self.lanes = admitted(self, added, surface)
        self._share(added["params"])
        for param, name in names.items():
            admit_sharded(name, param, surface, metric, self.replicas)
        rest = self.lanes, self.state, self.reference, self.ranks
        row = Row(added, list(names.values()), surface, metric, rhythm, *rest)
        check_replicas(added, self.lanes)
        check_together([*self.rows, row])
        if isinstance(surface, Surface):
            put = place if self.ranks is None else self.ranks.place
            placed = put({name: param for param, name in names.items()}, surface, added["seed"], self.lanes)
            if self.starts is None:
                write(placed)
            else:
                self.starts += placed
        row.seed_thermostat()
        self.param_groups.append(added)
        self.rows.append(row)
        if self.starts is None:
            self._begin(row)
            if self.state:
                row.make_state()

    def _share(self, params: Sequence[torch.Tensor]) -> None:
        """Know the processes that share the parameters; a new group may bring the first sharded one."""
        if self.ranks is None:
            self.ranks = ranks_of(params)
            for row in self.rows:
                row.ranks = self.ranks
                row.forget()

    @torch.no_grad()
    def _begin(self, row: Row) -> None:
        """Take up the rhythm of a part; what it holds is given back when this optimizer is no more."""
        commit(row.rhythm.start(row))
        weakref.finalize(self, row.dismiss).atexit = False

    def settle(self) -> None:
        """Follow those who have put other parameters in the place of the first ones, as Accelerate does."""
        for row in self.rows:
            if row.given is not row.group["params"]:
                follow(self)
                steps.set_clock(self)
                return

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every part once; returns what the closure returns, as torch's optimizers do."""
        return self.advance(closure)

    def advance(self, closure: Callable[[], Any] | None = None) -> Any:
        """The step itself, without what torch wraps around `step` for its profiler and for hooks."""
        if torch.compiler.is_compiling() and closure is None and self._init_group():
            assert self.plan is not None
            with torch.no_grad():
                traced.step(self.plan)
            return None
        before = torch.is_grad_enabled()
        try:  # by C calls, not by torch.no_grad: an interrupt inside its Python would leave gradients switched off
            torch._C._set_grad_enabled(False)
            # nothing is traced before torch._dynamo is loaded, which takes a second or two
            return (untraced() if "torch._dynamo" in sys.modules else _move)(self, closure)
        finally:
            torch._C._set_grad_enabled(before)

    def _init_group(self) -> bool:
        """Can the step be traced? By this name torch.compile calls it as it is, while it traces the rest."""
        self.settle()
        with torch.no_grad():
            found = traced.plan(self)
        if found is None:
            traced.leave(self)
        self.plan = found
        return found is not None

    def stop(self, replicas: Iterable[int]) -> None:
        """Let these replicas, by their place along the first axis, stand still from now on; the others go on."""
        chosen = {int(i) for i in replicas}
        if not self.replicas or not chosen <= set(range(self.lanes.rows)):
            raise ValueError(f"cannot stop {sorted(chosen)}: this optimizer moves {self.lanes.rows} replica(s)")
        for group in self.param_groups:
            group["stopped"] = tuple(sorted(chosen | set(group["stopped"])))

    @torch.no_grad()
    def release(self) -> None:
        """Give back what the parts hold between steps: the run has ended, or somebody else takes over.

        Slow parameters ask for gradients again and sleeping weights have their values. The next step takes up the
        rhythm where it was.
        """
        self.settle()
        for row in self.rows:
            row.let_go()
        self.released = True

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Show the whole network inside the block: sleeping weights have their values, and sleep again after it.

        For evaluating or saving a network with `asleep` parts in the middle of a run:
        ``with opt.awake(): test(model)``.
        """
        self.settle()
        if self.released:
            yield
            return
        with torch.no_grad():
            commit([one for row in self.rows for one in row.rhythm.rise(row)])
        self.awakened = True
        try:
            yield
        finally:
            self.awakened = False
            with torch.no_grad():
                commit([one for row in self.rows for one in row.rhythm.lie_down(row)])

    def temperature(self) -> dict[str, Any]:
        """Kinetic temperature pᵀp/N of each part, as the last step left its momenta; with replicas one for each.

        For BAOAB, OBA and ABO, rotated to start at the kick, that is right after O, where ⟨p²⟩ = τ holds best; for
        OBABO and ABOBA it is after a half kick, where ⟨p²⟩ = τ/(1 − h²/4) on a unit harmonic well. nan for
        overdamped parts, which have no momenta.
        """
        self.settle()
        return temperatures(self)

    @torch.no_grad()
    def violation(self) -> Any:
        """The largest constraint violation |g|, 0 where nothing is constrained; with replicas one for each."""
        self.settle()
        return largest_violation(self)

    @property
    def acceptance(self) -> Any:
        """The share of proposals that were accepted, with replicas one for each; nan where nothing was proposed."""
        return acceptance(self)

    def pace(self) -> Any:
        """What the present state counts in an average: ψ with `tether.Pace`, one for each replica; 1 without."""
        return self.rows[0].rhythm.weight(self.rows[0])

    @property
    def skipped(self) -> int:
        """How many steps were skipped for a gradient that is not finite; waits for the device that has counted them."""
        return int(self.missed) + (0 if self.plan is None else int(self.plan.bad))

    def describe(self) -> str:
        """The table of parts, as text, with the citation of a published method."""
        fallbacks = sum({id(row.surface): getattr(row.surface, "fallbacks", 0) for row in self.rows}.values())
        replicas = self.lanes.rows if self.replicas else 0
        return table(self.param_groups, self.labels(), self.method, self.skipped, fallbacks, replicas)

    def labels(self) -> list[str]:
        """A name for each part: its glob, with a number where several have the same."""
        wheres = [group["where"] for group in self.param_groups]
        return [where if wheres.count(where) == 1 else f"{where} #{i}" for i, where in enumerate(wheres)]

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors, to be saved by torch.save."""
        self.settle()
        with torch.no_grad():
            commit([one for row in self.rows for one in row.rhythm.notice(row)])
        packed = with_every_parameter(super().state_dict(), self.rows)
        for group in packed["param_groups"]:
            group.update(traced.in_numbers(group))
        return packed

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a checkpoint; the words must be those it was saved with."""

        def last(_: Any, given: dict[str, Any]) -> None:
            """See the dict as the hooks of others have left it; raise before anything has changed."""
            nonlocal state_dict
            check_checkpoint(given, self.rows, self.lanes)
            state_dict = given
            commit([one for row in self.rows for one in row.rhythm.unload(row)])  # the checkpoint says who sleeps

        self.settle()
        traced.leave(self)
        hook = self.register_load_state_dict_pre_hook(last)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        take_over(self.rows, self.param_groups, self.state, state_dict)
        self.released = False
        self.clock.step = self.param_groups[0]["step"] if self.param_groups else 0
        for row in self.rows:
            commit(row.rhythm.rise(row))
            commit(row.rhythm.lie_down(row))
        steps.set_clock(self)

    def __getstate__(self) -> dict[str, Any]:
        traced.leave(self)
        own = ["on_nonfinite", "reference", "clock", "replicas", "known_by_parameters", "lanes"]
        own += ["method", "missed"]
        parts = [(row.surface, row.metric, row.rhythm, row.trained, row.names) for row in self.rows]
        model = self.model if any(row.metric for row in self.rows) else None
        more = {"parts": parts, "model": model, "released": self.released, "alone": self.alone}
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}, **more}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != "parts"})
        if "parts" not in state:
            return  # torch, while it loads a state dict
        self.starts, self.rows, self.awakened = None, [], False
        self.ranks = ranks_of([param for group in self.param_groups for param in group["params"]])
        for group, (surface, metric, rhythm, trained, names) in zip(self.param_groups, state["parts"], strict=True):
            row = Row(group, names, surface, metric, rhythm, self.lanes, self.state, self.reference, self.ranks)
            row.trained = trained
            self.rows.append(row)
            weakref.finalize(self, row.dismiss).atexit = False

    def __repr__(self) -> str:
        return self.describe()
