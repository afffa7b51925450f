"""Chains, scaling and weight decay."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_compat.combine.common import (
    ScheduleState,
    known_number,
    map_present,
    new_clock,
    no_state,
    times,
    with_extra_args,
)
from optax_compat.combine.masking import MaskOrFn, masked
from optax_compat.ordering import are_alike, parameters_first
from optax_compat.rules.rule import fitted
from optax_compat.sparse import IndexedSlices, add_rows, dense, is_leaf
from optax_compat.types import (
    Array,
    GradientTransformation,
    OptState,
    Params,
    ScalarOrSchedule,
    Schedule,
    Updates,
    compute_dtype,
    next_count,
    real_dtype,
)


def apply_updates(params: Params, updates: Updates) -> Params:
    """`params + updates`, leaf by leaf, each in its parameter's dtype.

    The sum is formed in the wider of the two dtypes and rounded once. A parameter whose update is `None`
    is returned as it is, and where an update is 0 no bit changes. `IndexedSlices` are added to the rows that
    they have; rows past the end are dropped. Source: optax 0.2.8 `apply_updates`.
    """

    def add(p: Any, u: Any) -> Any:
        if p is None or u is None:
            return p
        p = jnp.asarray(p)
        if isinstance(u, IndexedSlices):
            return add_rows(p, u.map(lambda x: jnp.where(x == 0, -jnp.zeros_like(x), x)))  # as below
        u = jnp.asarray(u)
        dtype = compute_dtype(jnp.promote_types(p.dtype, u.dtype))
        wide = p.astype(dtype)
        # Adding zero is not free of effect: -0.0 + 0.0 is 0.0, and XLA may flush subnormal numbers to zero.
        return fitted(jnp.where(u == 0, wide, wide + u.astype(dtype)), p)

    return jax.tree.map(add, params, updates, is_leaf=is_leaf)


def applied(params: Params, updates: Updates) -> Params:
    """What `apply_updates` makes of dense updates that fit, else None: for `parameters_first`."""

    def add(w: Any, u: Any) -> Any:
        return apply_updates(w, u) if are_alike(w, u) else None

    leaves, treedef = jax.tree.flatten(params, is_leaf=is_leaf)
    try:
        return treedef.unflatten(map(add, leaves, treedef.flatten_up_to(updates)))
    except ValueError:  # parameters that no member looks at may be any
        return None


def chain(*args: GradientTransformation) -> GradientTransformation:
    """One transformation that applies others in turn.

    Its state is the tuple of their states. Members may come from optax, and the chain may be a
    member of optax's. Extra keyword arguments of `update` reach the members that take them
    (optax's own chain hands extra arguments to optax's members only). `IndexedSlices` reach members that
    this library made; others are given the dense gradients.

    Raises:
      TypeError: a member is not a pair `init`, `update`.
      ValueError: in `update`, a state that is not one of this chain.
    """
    updaters = [with_extra_args(tx) for tx in args]

    def init(params: Params) -> tuple[OptState, ...]:
        return tuple(tx.init(params) for tx in args)

    def update(
        updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, tuple[OptState, ...]]:
        if not isinstance(state, tuple | list) or len(state) != len(updaters):
            raise ValueError(
                f"The state of a chain of {len(updaters)} has one entry for each member. "
                f"Received: state={jax.tree.structure(state)}. "
                "Pass the state that this chain's init or update returned."
            )

        def run(state: OptState) -> tuple[Updates, OptState]:
            changes, new_state = updates, []
            for member, member_state in zip(updaters, state, strict=True):
                changes, member_state = member(changes, member_state, params, **extra_args)
                new_state.append(member_state)
            return changes, tuple(new_state)

        return run(state) if params is None else parameters_first(run, state, lambda u: applied(params, u))

    return GradientTransformation(init, update)


def identity() -> GradientTransformation:
    """Returns the updates as they are."""

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        return updates, state

    return GradientTransformation(no_state, update)


def scale(step_size: ArrayLike) -> GradientTransformation:
    """Multiplies the updates by `step_size`; their dtypes stay."""

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        return map_present(lambda u: times(u, step_size), updates), state

    return GradientTransformation(no_state, update)


def scale_by_schedule(step_size_fn: Schedule) -> GradientTransformation:
    """Multiplies the updates by `step_size_fn(count)`, `count` being 0 for the first update."""

    def update(
        updates: Updates, state: ScheduleState, params: Params | None = None
    ) -> tuple[Updates, ScheduleState]:
        step_size = step_size_fn(state.count)
        return map_present(lambda u: times(u, step_size), updates), ScheduleState(next_count(state.count))

    return GradientTransformation(new_clock, update)


def scale_by_learning_rate(
    learning_rate: ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> GradientTransformation:
    """Multiplies the updates by `-learning_rate`, a number or a schedule.

    `flip_sign=False` leaves the minus out. As in optax 0.2.8, a rate of `None` means no scaling
    *and* no minus.

    Raises:
      ValueError: `learning_rate` is NaN.
    """
    if learning_rate is None:
        return identity()
    if callable(learning_rate):
        schedule = learning_rate
        if not flip_sign:
            return scale_by_schedule(schedule)
        return scale_by_schedule(lambda count: -jnp.asarray(schedule(count)))
    number = known_number(learning_rate)
    if number is not None and number != number:
        raise ValueError("A learning rate is a number. Received: learning_rate=nan. Pass a finite number.")
    return scale(-learning_rate if flip_sign else learning_rate)  # pyright: ignore[reportOperatorIssue]


def add_decayed_weights(
    weight_decay: ScalarOrSchedule = 0.0, mask: MaskOrFn | None = None
) -> GradientTransformation:
    """Adds `weight_decay * params` to the updates.

    The sums have the parameters' dtypes. All rows of a table decay, so what was sparse comes out dense;
    inside of `lazy` only the rows present do.

    Args:
      weight_decay: a number or a schedule.
      mask: where it is True the weights decay; see `masked`. None: everywhere.

    Raises:
      ValueError: in `update`, if no parameters are passed.
    """
    decay = weight_decay if callable(weight_decay) else None

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        if params is None:
            raise ValueError(
                "Weight decay reads the parameters. Received: params=None. "
                "Pass them: update(updates, state, params)."
            )
        if isinstance(weight_decay, int | float) and weight_decay == 0:
            return updates, state
        amount = weight_decay if decay is None else decay(state.count)

        def add(u: Array | IndexedSlices, w: Array) -> Array:
            dtype = compute_dtype(w.dtype)
            factor = jnp.asarray(amount, real_dtype(dtype))
            return (dense(u.astype(dtype), w.shape) + factor * w.astype(dtype)).astype(w.dtype)

        new_state = state if decay is None else ScheduleState(next_count(state.count))
        return map_present(add, updates, params), new_state

    tx = GradientTransformation(no_state if decay is None else new_clock, update)
    return tx if mask is None else masked(tx, mask)
