"""Optimizer: a table of parts that moves a model's parameters; the only stateful class."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from tether.engine.advice import warn_frozen, warn_unused
from tether.engine.blocks import Lanes
from tether.engine.checkpoint import check_checkpoint
from tether.engine.constrained import Constrained
from tether.engine.gradients import NonFiniteGradient, faulty_gradients, faulty_replicas
from tether.engine.motion import Motion
from tether.engine.placed import Stack, degrees, place, replaced, stacks, write
from tether.engine.rows import due, lanes_of, named, noisy, param_groups, parameters_in, stacked, symbols, unnamed, zero
from tether.engine.table import table
from tether.engine.thermostat import check_thermostat
from tether.engine.undo import hold_back, put_back, restore, snapshot
from tether.metrics.path import Path
from tether.part import DEFAULTS, NUMERIC, Part, check, known_fields, plain
from tether.rhythms.cycles import Cycle
from tether.rhythms.cycles import cycle as cycle_of
from tether.rhythms.waiting import give_back, left_waiting, wait
from tether.surfaces import Free, Surface
from tether.words import Word, parse

__all__ = ["Clock", "NonFiniteGradient", "Optimizer"]


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
        foreach: False applies every letter tensor by tensor: slower, the same numbers to rounding. None is True.
        part_fields: defaults for the fields of every part, e.g. ``word="BAOAB", friction=1.0``.
    """

    method: str | None = None  # set by tether.methods, for the citation
    skipped: int = 0
    _known_finite = False  # set by `tether.train` where the gradients of this step have been looked at already
    _clocked = False  # does some part move only every so many steps?
    _resting: Sequence[int] = ()  # the replicas that stand still in this step
    _awake = False  # does somebody look at the weights that sleep?
    _released = False  # have the parts given back what they hold between steps?
    _alone = False  # is there one parameter, and has it no name?

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
        # `step`, `previous_lr` and `stopped` are state, kept with the fields because torch saves those as they are.
        state = {"step": 0, "previous_lr": 0.0, "stopped": ()}
        defaults = {**DEFAULTS, "where": "*", **part_fields, "lr": lr, "seed": seed, **state}
        check(defaults)
        groups = param_groups(params, parts, defaults)
        self._batch_dims = any(map(stacked, parameters_in(groups))) if batch_dims is None else bool(batch_dims)
        self._by_parameters = batch_dims is None  # then all must say the same
        self._lanes, self.clock = Lanes(), Clock()
        self._foreach, self._on_nonfinite = foreach is None or foreach, on_nonfinite
        self._motions: list[Motion | Constrained | None] = []
        self._surfaces: list[Surface | Free] = []
        self._metrics: list[Path | None] = []
        self._cycles: list[Cycle | None] = []
        self._model = params if isinstance(params, torch.nn.Module) else None
        self._numbers: list[dict[str, Any]] = []
        self._placed: list[tuple[Stack, torch.Tensor]] | None = []  # kept back until every part has been accepted
        super().__init__(groups, defaults)
        if all(group["every"] > 1 for group in self.param_groups):
            raise ValueError("some part must move at every step: leave every=1 for the fastest")
        warn_unused(part_fields, parts or groups, self.param_groups)
        warn_frozen(self.param_groups)
        placed, self._placed = self._placed, None
        write(placed)
        with torch.no_grad():
            for group, cycle in self._cyclic():
                cycle.start(group, self.state)
        if not any(self._metrics):
            self._model = None  # nobody asks for it
        self._promise()
        self._alone = unnamed(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a part given as a torch param group; its keys may be fields of a `Part`."""
        if not isinstance(param_group, dict):
            raise TypeError(f"a param group is a dict with the key 'params', got {type(param_group).__name__}")
        extra = {"params", "param_names", "trained", "seed", "step", "previous_lr", "stopped", "initial_lr"}
        known_fields((key for key in param_group if key not in extra), "param group")
        group = {**self.defaults, **{key: value for key, value in param_group.items() if value is not None}}
        check(group)
        group = plain(group, getattr(self, "param_groups", []))
        surface, group["on"] = group["on"], repr(group["on"])  # a checkpoint holds plain values only
        metric = group["metric"]
        group["metric"] = None if metric is None else repr(metric)
        if metric is not None and self._model is None:
            raise ValueError(f"metric={metric!r} measures a network: pass the module itself, Optimizer(model, ...)")
        if getattr(self, "param_groups", None):
            group["step"], group["stopped"] = self.param_groups[0]["step"], self.param_groups[0]["stopped"]
        super().add_param_group(group)
        added = self.param_groups.pop()
        names: dict[torch.Tensor, str] = {}
        give_back(left_waiting(added["params"]))
        for name, param in named(added, self._count()):
            if not param.is_floating_point():
                raise TypeError(
                    f"parameter {name!r} is {param.dtype}; tether moves real floating-point parameters: "
                    "hold integers by register_buffer(...), and a complex one as torch.view_as_real(z)"
                )
            if param.is_meta:
                raise TypeError(
                    f"parameter {name!r} is on the meta device and has no values; materialise the model first, "
                    "model.to_empty(device='cpu'), and initialise or load it"
                )
            if hasattr(param, "to_local"):
                raise TypeError(
                    f"parameter {name!r} is a DTensor; tether does not move sharded parameters yet: use DDP"
                )
            if param in names:
                raise ValueError(
                    f"{names[param]!r} and {name!r} are one tensor: name it once, as named_parameters() does"
                )
            if self._by_parameters and stacked(param) != self._batch_dims:
                first = "are no replicas" if stacked(param) else "are replicas, stacked along their first axis"
                raise ValueError(
                    f"parameter {name!r} {'is one of' if stacked(param) else 'is not of'} tether.Replicas, and the "
                    f"parameters before it {first}: give each an optimizer of its own"
                )
            if not names and not self.param_groups:
                self._lanes = lanes_of(name, param, self._batch_dims)
            if self._batch_dims and (param.dim() == 0 or len(param) != self._lanes.rows or not param.is_contiguous()):
                raise ValueError(
                    f"parameter {name!r} of shape {tuple(param.shape)} does not hold {self._lanes.rows} replicas along "
                    "its first axis, contiguous in memory: use tether.Replicas, or batch_dims=0"
                )
            if isinstance(surface, Surface):
                surface.check(name, param.shape[self._batch_dims :])
            names[param] = name
        for field in (*NUMERIC, "thermostat"):
            value, n = added[field], self._lanes.rows if self._batch_dims else 0
            if isinstance(value, torch.Tensor) and value.dim() and len(value) != n:
                rule = f"{n}, one for each replica" if n else "one, or batch_dims must be 1"
                raise ValueError(f"part {added['where']!r}: {field} holds {len(value)} numbers; it must hold {rule}")
        if isinstance(surface, Surface):
            placed = place({name: param for param, name in names.items()}, surface, added["seed"], self._lanes)
            if self._placed is None:
                write(placed)
            else:
                self._placed += placed
        if "ξ" in parse(added["word"]).needs and not isinstance(added["thermostat"], torch.Tensor):
            wide = torch.float64 if any(param.dtype is torch.float64 for param in names) else torch.float32
            device = next(iter(names)).device if names else None
            if self._batch_dims:
                added["thermostat"] = torch.full(
                    (self._lanes.rows,), added["thermostat"], dtype=torch.float64, device="cpu"
                )
            else:
                added["thermostat"] = torch.tensor(added["thermostat"], dtype=wide, device=device)
        elif self._batch_dims and isinstance(added["thermostat"], torch.Tensor):
            added["thermostat"] = added["thermostat"].double().expand(self._lanes.rows).clone()
        rows = (*self.param_groups, added)
        if any(parse(row["word"]).needs_closure for row in rows) and any(
            row["every"] > 1 or row["metric"] is not None or row["asleep"] or row["merge"] > 1 for row in rows
        ):
            raise ValueError(
                "a word that takes several gradients per step cannot go with parts that have every, metric, asleep or "
                "merge"
            )
        rates = sorted({row["every"] for row in rows})
        for fast, slow in pairwise(rates):
            if slow % fast:
                raise ValueError(
                    f"every={slow} must be a multiple of every={fast} of the faster part: rates are nested"
                )
        if added["every"] > 1:
            self._clocked = True
            added["trained"] = [param.requires_grad for param in names]
        self.param_groups.append(added)
        self._surfaces.append(surface)
        self._metrics.append(metric)
        self._motions.append(None)
        self._numbers.append({})
        found = cycle_of(added, list(names.values()), self._lanes)
        self._cycles.append(found)
        if self._placed is None:
            self._promise()
            if found is not None:
                with torch.no_grad():
                    found.start(added, self.state)

    def _cyclic(self) -> list[tuple[dict[str, Any], Cycle]]:
        """The parts that do something over several steps."""
        rows = zip(self.param_groups, self._cycles, strict=True)
        return [(group, cycle) for group, cycle in rows if cycle is not None]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every part once; returns what the closure returns, as torch's optimizers do."""
        return self._step(closure)

    # The step is fused already: torch.compile would trace the bookkeeping and gain nothing.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _step(self, closure: Callable[[], Any] | None) -> Any:
        words, sizes = self._rows()
        if self._awake:
            raise RuntimeError("a step inside opt.awake() would move weights that sleep: leave the block first")
        if self._released:  # the rhythm is taken up before a closure sees the weights
            self._released = False
            self._each_cycle("lie_down")
        if self._alone and torch._C._current_graph_task_id() != -1 and any(map(noisy, words, sizes)):
            raise RuntimeError(
                "a step in the backward pass by an optimizer of one parameter without a name: all such parameters "
                "would get the same noise; name it, Optimizer([(name, param)], ...)"
            )
        if any(word.needs_closure for word in words):
            return self._step_in_stages(closure, words, sizes)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_at_once(words, sizes)
        return loss

    def _step_at_once(self, words: list[Word], sizes: list[dict[str, Any]]) -> None:
        """Run the rotated words, all on the gradients at hand."""
        motions = self._begin(words, sizes)
        if motions is None:
            return
        rows = [row for row in zip(self.param_groups, motions, words, sizes, strict=True) if not zero(row[3]["lr"])]
        held = hold_back(self.param_groups, self.state, self._resting) if self._resting else None
        scales = self._scales() if self._model is not None else None
        cyclic = self._cyclic() if rows and any(self._cycles) else ()
        before = [(group, cycle, cycle.before(group, self.state)) for group, cycle in cyclic]
        # What may fail goes first and writes last, so that a step is done as a whole or not at all.
        for group, motion, word, size in sorted(rows, key=lambda row: not row[1].fallible) if len(rows) > 1 else rows:
            beats = word.program
            if group["every"] > 1:
                beats = word.on_clock(group["every"], due(group), group["drift"])
            if scales and beats and isinstance(motion, Motion) and id(group) in scales:
                metric, factors = scales[id(group)]
                motion.measured(metric, factors, whole="p" in word.needs or noisy(word, size))
            if beats:
                motion.run(beats, group["previous_lr"], size["lr"], (group["seed"], group["step"], 0))
        for group, motion, word, _ in rows:
            motion.finish()
            if "ξ" in word.needs:
                group["thermostat"] = motion.scalars["ξ"]
        for group, cycle, values in before:
            cycle.after(group, self.state, values)
        if held is not None:
            put_back(self.param_groups, held)
        self._count_step(sizes)
        if self._clocked:
            self._set_clock()

    def _scales(self) -> dict[int, tuple[Path, dict[str, Any]]]:
        """The metric of each part that has one, with what it says of the model as it is."""
        found: dict[Path, dict[str, Any]] = {}
        rows: dict[int, tuple[Path, dict[str, Any]]] = {}
        for group, metric in zip(self.param_groups, self._metrics, strict=True):
            if metric is not None and self._model is not None and due(group):
                if metric not in found:
                    found[metric] = metric.factors(self._model)
                rows[id(group)] = (metric, found[metric])
        return rows

    def _set_clock(self) -> None:
        """Let only what is due at the next step ask for gradients: the backward pass stops where nothing is."""
        self.clock.step = self.param_groups[0]["step"] if self.param_groups else 0
        for group in self.param_groups:
            if group["every"] > 1:
                (give_back if due(group) else wait)(self._slow(group))

    def _promise(self) -> None:
        """Slow parameters are given back, at the latest when this optimizer is no more."""
        slow = [param for group in self.param_groups for param in self._slow(group)]
        if slow:
            weakref.finalize(self, give_back, slow).atexit = False

    def _slow(self, group: dict[str, Any]) -> list[torch.Tensor]:
        """The parameters of a slow part that are trained."""
        return [param for param, yes in zip(group["params"], group.get("trained", ()), strict=False) if yes]

    def release(self) -> None:
        """Give back what the parts hold between steps: the run has ended, or somebody else takes over.

        Slow parameters ask for gradients again and sleeping weights have their values. The next step takes up the
        rhythm where it was.
        """
        give_back([param for group in self.param_groups for param in self._slow(group)])
        if not self._released:
            self._each_cycle("rise")
        self._released = True

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Show the whole network inside the block: sleeping weights have their values, and sleep again after it.

        For evaluating or saving a network with `asleep` parts in the middle of a run:
        ``with opt.awake(): test(model)``.
        """
        if self._released:
            yield
            return
        self._each_cycle("rise")
        self._awake = True
        try:
            yield
        finally:
            self._awake = False
            self._each_cycle("lie_down")

    @torch.no_grad()
    def _each_cycle(self, what: str) -> None:
        for group, cycle in self._cyclic():
            getattr(cycle, what)(group, self.state)

    def _step_in_stages(self, closure: Callable[[], Any] | None, words: list[Word], sizes: list[dict[str, Any]]) -> Any:
        """Run the words as written, all parts together, with a fresh gradient before each stage."""
        if all(zero(size["lr"]) for size in sizes):
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._begin(words, sizes)
            return loss
        if closure is None:
            word = next(word for word in words if word.needs_closure)
            raise RuntimeError(
                f"the word {word.text!r} takes {len(word.stages) - 1} gradients per step: call opt.step(closure) with "
                "a closure that calls opt.zero_grad(), computes the loss, calls loss.backward() and returns the loss"
            )
        loss = None
        draws = [0] * len(words)
        kicked: set[torch.Tensor] = set()
        saved, held = snapshot(self.param_groups, self.state), None
        try:
            for stage in range(max(len(word.stages) for word in words)):
                if stage:
                    with torch.enable_grad():
                        value = closure()
                    loss = value if stage == 1 else loss
                motions = self._begin(words, sizes, gradient=stage > 0)
                held = held or hold_back(self.param_groups, self.state, self._resting)
                if motions is None:
                    restore(self.param_groups, self.state, saved)
                    return loss
                for i, (group, motion, word) in enumerate(zip(self.param_groups, motions, words, strict=True)):
                    if stage == 1 and "g0" in word.needs:
                        motion.remember_gradient()
                    if stage < len(word.stages):
                        name = (group["seed"], group["step"], draws[i])
                        draws[i] = motion.run(word.stages[stage], 0.0, sizes[i]["lr"], name)
                        motion.finish()
                        if "ξ" in word.needs:
                            group["thermostat"] = sizes[i]["ξ"] = motion.scalars["ξ"]
                if stage:
                    kicked |= {x for group in self.param_groups for x in group["params"] if x.grad is not None}
        except BaseException:
            restore(self.param_groups, self.state, saved)
            raise
        restore(
            self.param_groups, self.state, saved, unless=kicked
        )  # what drifted before the first kick and then got none
        put_back(self.param_groups, held)
        self._count_step(sizes)
        return loss

    def _rows(self) -> tuple[list[Word], list[dict[str, Any]]]:
        """The words of the table and the values of its fields."""
        groups, n = self.param_groups, self._lanes.rows if self._batch_dims else 0
        return [parse(group["word"]) for group in groups], [
            symbols(group, known, n) for group, known in zip(groups, self._numbers, strict=True)
        ]

    def _begin(
        self, words: list[Word], sizes: list[dict[str, Any]], gradient: bool = True
    ) -> list[Motion | Constrained] | None:
        """Gather and check everything a step needs, changing nothing; None where the step is to be skipped."""
        found = faulty_gradients(self.param_groups) if gradient and not self._known_finite else {}
        self._known_finite = False
        self._resting = self.param_groups[0]["stopped"] if self.param_groups else ()
        if found and self._batch_dims:
            faulty = faulty_replicas(self.param_groups)
            if faulty and self._on_nonfinite == "raise":
                raise NonFiniteGradient(found, faulty)
            self.skipped += bool(faulty)
            self._resting = [*self._resting, *faulty]
        elif found:
            if self._on_nonfinite == "raise":
                raise NonFiniteGradient(found)
            self.skipped += 1
            return None
        motions: list[Motion | Constrained] = []
        first = 0
        for i, (group, word, size) in enumerate(zip(self.param_groups, words, sizes, strict=True)):
            motion, surface = self._motions[i], self._surfaces[i]
            momenta = "p" in word.needs
            if motion is None or motion.stale(momenta):
                names = [name for name, _ in named(group, first)]
                if isinstance(surface, Surface):
                    motion = Constrained(group["params"], names, momenta, self.state, surface, self._lanes)
                else:
                    self._check_shapes(group["params"], names)
                    motion = Motion(group["params"], names, momenta, self.state, not self._foreach, self._lanes)
                self._motions[i] = motion
            first += len(group["params"])
            motion.begin(size, size["ω"], gradient and (group["every"] == 1 or due(group)), self._resting)
            if "ξ" in word.needs and not isinstance(size["ξ"], torch.Tensor) and motion.live:
                block = motion.live[0]
                wide = torch.float64 if block.dtype is torch.float64 else torch.float32
                size["ξ"] = torch.tensor(float(size["ξ"]), dtype=wide, device=block.device)
                if self._batch_dims:
                    size["ξ"] = size["ξ"].double().cpu().expand(self._lanes.rows).clone()
            if group["normalised"] and size["N"]:  # once per step, however many stages it has
                size["ε"] = size.setdefault("coupling", size["ε"]) / size["N"]
            if "ε" in word.needs and motion.live:
                check_thermostat(group, size, self.state, self._resting)
            motions.append(motion)
        return motions

    def stop(self, replicas: Iterable[int]) -> None:
        """Let these replicas, by their place along the first axis, stand still from now on; the others go on."""
        chosen = {int(i) for i in replicas}
        if not self._batch_dims or not chosen <= set(range(self._lanes.rows)):
            raise ValueError(f"cannot stop {sorted(chosen)}: this optimizer moves {self._lanes.rows} replica(s)")
        for group in self.param_groups:
            group["stopped"] = tuple(sorted(chosen | set(group["stopped"])))

    def _count_step(self, sizes: list[dict[str, Any]]) -> None:
        if all(zero(size["lr"]) for size in sizes):
            return  # nothing moved: distributed checkpointing steps like this to make the state
        for group, size in zip(self.param_groups, sizes, strict=True):
            group["step"] += 1
            if isinstance(size["lr"], torch.Tensor):
                group["previous_lr"] = torch.where(size["lr"] == 0, group["previous_lr"], size["lr"])
            else:
                group["previous_lr"] = size["lr"] or group["previous_lr"]

    def _check_shapes(self, params: list[torch.Tensor], names: list[str]) -> None:
        """Raise where a parameter no longer fits its momentum."""
        for param, name in zip(params, names, strict=True):
            momentum = self.state.get(param, {}).get("momentum")
            if momentum is not None and momentum.shape != param.shape:
                raise replaced(name, param, "momentum", momentum)

    def temperature(self) -> dict[str, Any]:
        """Kinetic temperature pᵀp/N of each part, as the last step left its momenta; with replicas one for each.

        For BAOAB, OBA and ABO, rotated to start at the kick, that is right after O, where ⟨p²⟩ = τ holds best; for
        OBABO and ABOBA it is after a half kick, where ⟨p²⟩ = τ/(1 − h²/4) on a unit harmonic well. nan for
        overdamped parts, which have no momenta.
        """
        result: dict[str, Any] = {}
        for label, group, surface in zip(self._labels(), self.param_groups, self._surfaces, strict=True):
            squares: Any = torch.zeros(self._lanes.rows, dtype=torch.float64, device="cpu")
            count = 0
            if parse(group["word"]).kinetic or isinstance(surface, Surface):
                moving = [param for param in group["params"] if "momentum" in self.state.get(param, {})]
                for x in moving:
                    momenta = self.state[x]["momentum"].detach().double().reshape(self._lanes.rows, -1)
                    squares += momenta.square().sum(1).cpu()
                whole = moving if not getattr(surface, "together", False) else group["params"]
                count = degrees(surface, whole, self._lanes)
            each = squares / count if count else squares + math.nan
            result[label] = each if self._batch_dims else float(each)
        return result

    @torch.no_grad()
    def violation(self) -> Any:
        """The largest constraint violation |g|, 0 where nothing is constrained; with replicas one for each."""
        worst = torch.zeros(self._lanes.rows, dtype=torch.float64, device="cpu")
        for group, surface in zip(self.param_groups, self._surfaces, strict=True):
            if isinstance(surface, Surface):
                # a part between its steps asks for no gradient, and is on its surface all the same
                trained = group.get("trained") or [param.requires_grad for param in group["params"]]
                moving = [row for row, yes in zip(named(group, 0), trained, strict=True) if yes]
                for mine, labels in stacks([x for _, x in moving], [name for name, _ in moving], surface):
                    stack = Stack(mine, labels, surface, self._lanes)
                    point = stack.surface.embed(stack.point(self.state), stack.gather(mine))
                    each = point.view(-1, self._lanes.rows, *point.shape[1:]).transpose(0, 1)
                    found = torch.stack([stack.surface.violation(replica) for replica in each])
                    worst = torch.maximum(worst, found.double().cpu())  # nan stays nan
        return worst if self._batch_dims else float(worst)

    def describe(self) -> str:
        """The table of parts, as text, with the citation of a published method."""
        fallbacks = sum({id(surface): getattr(surface, "fallbacks", 0) for surface in self._surfaces}.values())
        replicas = self._lanes.rows if self._batch_dims else 0
        return table(self.param_groups, self._labels(), self.method, self.skipped, fallbacks, replicas)

    def _labels(self) -> list[str]:
        wheres = [group["where"] for group in self.param_groups]
        return [where if wheres.count(where) == 1 else f"{where} #{i}" for i, where in enumerate(wheres)]

    def _count(self) -> int:
        return sum(len(group["params"]) for group in self.param_groups)

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors, to be saved by torch.save."""
        packed = super().state_dict()
        if packed["state"]:
            # Distributed checkpoints want some state for every parameter that moves, or for none.
            state = dict(packed["state"])
            for saved, group, motion in zip(packed["param_groups"], self.param_groups, self._motions, strict=True):
                moving = {param for block in (motion.blocks if motion else []) for param in block.params}
                for i, param in zip(saved["params"], group["params"], strict=True):
                    if param in moving:
                        state.setdefault(i, {"step": torch.tensor(float(group["step"]), device="cpu")})
            packed["state"] = state
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a checkpoint; the words must be those it was saved with."""

        def last(_: Any, given: dict[str, Any]) -> None:
            """See the dict as the hooks of others have left it; raise before anything has changed."""
            nonlocal state_dict
            check_checkpoint(given, self.param_groups, self._surfaces, self._lanes)
            state_dict = given
            self._each_cycle("rise")  # the checkpoint will say who sleeps

        hook = self.register_load_state_dict_pre_hook(last)
        try:
            with torch.no_grad():
                super().load_state_dict(state_dict)
                for group, cycle in self._cyclic():
                    cycle.loaded(group)
        finally:
            hook.remove()
        self._released = False
        self._set_clock()
        self._motions = [None] * len(self.param_groups)
        # torch casts state to the parameter's dtype, too coarse on a surface for half precision, and does not copy it.
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for j, param in zip(saved["params"], group["params"], strict=True):
                if j in state_dict["state"]:
                    own = (self.state[param] if group["on"] == "Free()" else state_dict["state"][j]).items()
                    self.state[param] = {key: value.to(param.device, copy=True) for key, value in own}

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        own = (
            "_foreach",
            "_on_nonfinite",
            "_surfaces",
            "_metrics",
            "_cycles",
            "_model",
            "clock",
            "_batch_dims",
            "_by_parameters",
            "_released",
            "_alone",
            "_lanes",
            "method",
            "skipped",
        )
        return {**state, **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._motions, self._placed = [None] * len(self.param_groups), None
        self._numbers = [{} for _ in self.param_groups]
        self._clocked = any(group["every"] > 1 for group in self.param_groups)
        self._promise()

    def __repr__(self) -> str:
        return self.describe()
