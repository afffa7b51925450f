"""16-bit parameters that learn: float32 copies of them, or rounding up and down by chance."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from optax_compat.combine.common import map_present, with_extra_args
from optax_compat.sparse import IndexedSlices, add_rows, dense, is_leaf
from optax_compat.types import (
    Array,
    DType,
    GradientTransformation,
    OptState,
    Params,
    PyTree,
    Updates,
    compute_dtype,
)


def is_narrow(dtype: DType) -> bool:
    """Whether arithmetic on a dtype runs in a wider one: 16-bit floats."""
    return compute_dtype(dtype) != dtype


def widened(tree: PyTree) -> PyTree:
    """A tree with its 16-bit floats as float32; None stays."""
    return map_present(lambda x: x.astype(compute_dtype(x.dtype)), tree)


def like(new: PyTree, old: PyTree) -> PyTree:
    """A state in the dtypes of the one before."""
    return jax.tree.map(lambda x, y: x if x.dtype == y.dtype else x.astype(y.dtype), new, old)


def current(master: Array, w: Array) -> Array:
    """A float32 copy, or the parameter itself where something else has changed it since the last update."""
    return jnp.where(master.astype(w.dtype) == w, master, w.astype(master.dtype))


class MasterState(NamedTuple):
    """The state of `master_weights`.

    Attributes:
      master: for each 16-bit parameter its float32 copy, for others None.
      inner_state: that of the transformation inside, for float32 parameters.
    """

    master: PyTree
    inner_state: OptState


def master_weights(tx: GradientTransformation) -> GradientTransformation:
    """`tx` on float32 copies of 16-bit parameters: updates too small for 16 bits add up in these.

    `tx` sees parameters, gradients and slots in float32. The update is the difference between the rounded
    copy and the parameter, so that `apply_updates` gives the rounded copy exactly, unless a parameter changes
    by a factor of 2**13 (float16) or 2**16 (bfloat16) at once, where it may miss by the last bit. A parameter
    that something else has changed since is where its copy goes on from. Other parameters go through `tx` as
    they are.

    Args:
      tx: a transformation, from optax too.

    Raises:
      ValueError: in `update`, if no parameters are passed.

    Source: Micikevicius et al. 2018 (arXiv:1710.03740).
    """
    inner_update = with_extra_args(tx)

    def init(params: Params) -> MasterState:
        def copy(w: Any) -> Any:
            return w.astype(jnp.float32) if w is not None and is_narrow(jnp.asarray(w).dtype) else None

        master = jax.tree.map(lambda w: copy(w), params, is_leaf=is_leaf)
        return MasterState(master, tx.init(widened(params)))

    def update(
        updates: Updates, state: MasterState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, MasterState]:
        _require_params(params, "master_weights")
        treedef = jax.tree.structure(params)
        weights = treedef.flatten_up_to(params)
        masters = treedef.flatten_up_to(state.master)
        masters = [m if m is None else current(m, w) for m, w in zip(masters, weights, strict=True)]
        wide = treedef.unflatten([w if m is None else m for m, w in zip(masters, weights, strict=True)])
        given = treedef.unflatten(map(widened, treedef.flatten_up_to(updates)))
        new, inner_state = inner_update(given, state.inner_state, wide, **extra_args)
        out, new_masters = [], []
        for m, w, u in zip(masters, weights, treedef.flatten_up_to(new), strict=True):
            if m is None or u is None:
                out.append(u)
                new_masters.append(m)
                continue
            m = _moved(m, u)
            rounded = m.astype(w.dtype)
            # Infinity minus infinity is NaN, and where nothing changes no bit should.
            out.append(jnp.where(rounded == w, -0.0, rounded.astype(jnp.float32) - w.astype(jnp.float32)))
            new_masters.append(m)
        return treedef.unflatten(out), MasterState(treedef.unflatten(new_masters), inner_state)

    return GradientTransformation(init, update)


def _moved(w: Array, u: Array | IndexedSlices) -> Array:
    return add_rows(w, u) if isinstance(u, IndexedSlices) else jnp.where(u == 0, w, w + u.astype(w.dtype))


class StochasticState(NamedTuple):
    """The state of `stochastic_rounding`.

    Attributes:
      key: the random key of the next update.
      inner_state: that of the transformation inside.
    """

    key: Array
    inner_state: OptState


def stochastic_round(key: Array, x: Array, dtype: DType) -> Array:
    """`x` in a 16-bit dtype, rounded up or down by chance so that its expectation is `x`.

    Entries that are representable, infinite or NaN stay what they are. What is beyond the largest finite
    number becomes that or infinity as by rounding to nearest.

    Args:
      key: a random key.
      x: float32, of any shape.
      dtype: float16 or bfloat16.
    """
    # What a 16-bit float is too short for: 16 bits of a float32 for bfloat16, 13 for float16.
    near = x.astype(dtype)
    back = near.astype(jnp.float32)
    other = jnp.nextafter(near, jnp.where(back < x, jnp.inf, -jnp.inf).astype(dtype))
    gap = other.astype(jnp.float32) - back
    chance = jnp.where((back == x) | ~jnp.isfinite(gap), 0, (x - back) / gap)
    return jnp.where(jax.random.uniform(key, x.shape) < chance, other, near)


def stochastic_rounding(tx: GradientTransformation, key: Array) -> GradientTransformation:
    """`tx`, and 16-bit parameters plus its updates rounded up or down by chance, so that they move on
    average.

    An update much smaller than a parameter's last bit then moves it now and then by that bit, without bias
    and without float32 copies. `tx` sees float32 parameters and gradients, and its slots have the dtypes
    that it gives to 16-bit parameters. The updates of 16-bit parameters are dense.

    Args:
      tx: a transformation, from optax too.
      key: `jax.random.key(seed)` or `jax.random.PRNGKey(seed)`.

    Raises:
      ValueError: in `update`, if no parameters are passed.

    Source: Gupta et al. 2015 (arXiv:1502.02551).
    """
    inner_update = with_extra_args(tx)

    def init(params: Params) -> StochasticState:
        return StochasticState(jax.random.fold_in(key, 0), tx.init(params))  # the caller keeps the key

    def update(
        updates: Updates, state: StochasticState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, StochasticState]:
        _require_params(params, "stochastic_rounding")
        treedef = jax.tree.structure(params)
        weights = treedef.flatten_up_to(params)
        given = treedef.unflatten(map(widened, treedef.flatten_up_to(updates)))
        new, inner_state = inner_update(given, state.inner_state, widened(params), **extra_args)
        inner_state = like(inner_state, state.inner_state)
        next_key, now = jax.random.split(state.key)
        out = []
        for i, (w, u) in enumerate(zip(weights, treedef.flatten_up_to(new), strict=True)):
            if u is None or not is_narrow(w.dtype):
                out.append(u)
                continue
            old = w.astype(jnp.float32)
            target = stochastic_round(jax.random.fold_in(now, i), old + dense(u, w.shape), w.dtype)
            out.append(jnp.where(target == w, -0.0, target.astype(jnp.float32) - old))
        return treedef.unflatten(out), StochasticState(next_key, inner_state)

    return GradientTransformation(init, update)


def _require_params(params: Params | None, what: str) -> None:
    if params is None:
        raise ValueError(
            f"{what} rounds the parameters. Received: params=None. Pass them: update(updates, state, params)."
        )
