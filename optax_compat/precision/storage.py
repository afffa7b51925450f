"""16-bit parameters that learn: float32 copies of them, or rounding up and down by chance."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from optax_compat.combine.basic import applied
from optax_compat.combine.common import map_present, with_extra_args
from optax_compat.ordering import parameters_first
from optax_compat.packing import per_leaf
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
    is_narrow,
)


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


def _scrambled(x: Array) -> Array:
    """A permutation of the 32-bit integers in which each bit of `x` flips each of the result by chance."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _random_bits(words: Array, shape: tuple[int, ...]) -> Array:
    """32 random bits for each entry of an array, made where they are used: no memory is moved for them.

    A counter that is hashed twice, each time with a word of the key, so that they depend on the entry's place
    alone, however the array is split over devices.
    """
    place = jnp.zeros(shape, jnp.uint32)
    for axis, length in enumerate(shape):
        place = place * jnp.uint32(length % 2**32) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return _scrambled(_scrambled(place ^ words[0]) + words[1])


def _as_bits(x: Array) -> Array:
    return jax.lax.bitcast_convert_type(x, jnp.uint32)


def _as_floats(bits: Array) -> Array:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def words_of(key: Array, n: int) -> Array:
    """What `rounded_by` takes, for each of `n` arrays."""
    return jax.random.bits(key, (n, 2), jnp.uint32)


def rounded_by(words: Array, x: Array, dtype: DType) -> Array:
    """`stochastic_round`, by two random 32-bit words in the place of a key."""
    x = x.astype(jnp.float32)
    # Cut off are 16 bits of a float32 for bfloat16, 13 for float16. As many random ones are added to them
    # before, which carry with the right chance: a float's bits are in the order of its magnitude.
    info = jnp.finfo(dtype)
    cut = 23 - info.nmant
    random = _random_bits(words, x.shape) >> (32 - cut)
    cut_off = jnp.uint32(2**32 - 2**cut)
    up = _as_floats((_as_bits(x) + random) & cut_off)
    size = jnp.abs(x)
    if info.minexp > jnp.finfo(jnp.float32).minexp:  # below its normal numbers float16 has even spaces
        space = float(info.smallest_subnormal)
        small = jnp.floor(size * (1 / space) + random.astype(jnp.float32) * 2.0**-cut) * space
        up = jnp.where(size < float(info.tiny), jnp.copysign(small, x), up)
    # NaN, infinity, and what is beyond the largest number
    return jnp.where(size < float(info.max), up.astype(dtype), x.astype(dtype))


def stochastic_round(key: Array, x: Array, dtype: DType) -> Array:
    """`x` in a 16-bit dtype, rounded up or down by chance so that its expectation is `x`.

    Entries that are representable, infinite or NaN stay what they are. What is beyond the largest finite
    number becomes that or infinity as by rounding to nearest.

    Chance is a hash of the key and of the place of an entry in its array, the same however the array is
    split over devices; good enough to round, not for cryptography or simulation.

    Args:
      key: a random key.
      x: float32, to which others are cast, of any shape.
      dtype: float16 or bfloat16.

    Source of the hash: Wellons 2018, "Prospecting for Hash Functions" (`lowbias32`).
    """
    return rounded_by(words_of(key, 1)[0], x, dtype)


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
      TypeError: no random key.
      ValueError: in `update`, if no parameters are passed.

    Source: Gupta et al. 2015 (arXiv:1502.02551).
    """
    _check_key(key)
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
        next_key, now = jax.random.split(state.key)
        words = words_of(now, len(weights))

        def run(inner_state: OptState) -> tuple[Updates, OptState]:
            new, new_state = inner_update(given, inner_state, widened(params), **extra_args)
            out = []
            for i, (w, u) in enumerate(zip(weights, treedef.flatten_up_to(new), strict=True)):
                if u is None or not is_narrow(w.dtype):
                    out.append(u)
                    continue
                old = w.astype(jnp.float32)
                target = rounded_by(words[i], old + dense(u, w.shape), w.dtype)
                out.append(jnp.where(target == w, -0.0, target.astype(jnp.float32) - old))
            return treedef.unflatten(out), like(new_state, inner_state)

        new, inner_state = parameters_first(run, state.inner_state, lambda u: applied(params, u))
        return new, StochasticState(next_key, inner_state)

    return per_leaf(GradientTransformation(init, update))


def _check_key(key: Any) -> None:
    try:
        jax.eval_shape(lambda key: jax.random.fold_in(key, 0), key)
    except (TypeError, ValueError):
        raise TypeError(
            f"Chance starts from a random key. Received: key={key!r}. Pass jax.random.key(0), say."
        ) from None


def _require_params(params: Params | None, what: str) -> None:
    if params is None:
        raise ValueError(
            f"{what} rounds the parameters. Received: params=None. Pass them: update(updates, state, params)."
        )
