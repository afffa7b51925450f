"""Many small leaves in one flat buffer: a step over a thousand of them then costs a few kernels.

Elementwise transformations do not care what shape they run on, so they run on the buffers. What goes by
whole parameters runs on the leaves (`per_leaf`), which this library's transformations see to by themselves.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from optax_compat.parts import cut, filled, join, split
from optax_compat.sparse import dense, is_leaf, is_sparse
from optax_compat.tracing import is_tracer, tracing
from optax_compat.types import Array, GradientTransformation, OptState, Params, PyTree, Updates

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Where the leaves of a tree lie in buffers. Static: hashable, the same for all that mirrors the tree.

    Attributes:
      treedef: the structure of the tree.
      shapes: the shape of each leaf.
      places: for each leaf, which of the buffers holds it; in one buffer leaves lie in their order.
      names: for each buffer the dtype of the leaves that share it, or the path of the leaf that is one.
      shared: for each buffer whether leaves share it, flat; else it is a leaf as it stands.
    """

    treedef: Any
    shapes: tuple[Shape, ...]
    places: tuple[int, ...]
    names: tuple[str, ...]
    shared: tuple[bool, ...]

    @functools.cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """For each buffer the leaves in it."""
        members: list[list[int]] = [[] for _ in self.names]
        for leaf, place in enumerate(self.places):
            members[place].append(leaf)
        return tuple(map(tuple, members))

    @functools.cached_property
    def shapes_in(self) -> tuple[tuple[Shape, ...], ...]:
        """For each buffer the shapes of the leaves in it."""
        return tuple(tuple(self.shapes[i] for i in members) for members in self.members)

    @functools.cached_property
    def _key(self) -> tuple[Any, ...]:
        key = (self.treedef, self.shapes, self.places, self.names, self.shared)
        return (hash(key), *key)

    def __hash__(self) -> int:
        return self._key[0]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._key == other._key)


@jax.tree_util.register_pytree_with_keys_class
class Packed:
    """A tree whose small leaves share a flat buffer each dtype; made by `pack`.

    It is itself a pytree, of its buffers: `jax.grad` of a function of it gives another, transformations keep
    slots for it, it can be donated, scanned over, laid out over devices. `unpack` gives the tree.

    Attributes:
      buffers: the buffers; in what mirrors a tree (gradients, say) an entry may also be None.
      layout: where the leaves lie in them, static.
    """

    def __init__(self, buffers: Sequence[Any], layout: Layout) -> None:
        self.buffers, self.layout = tuple(buffers), layout

    def __repr__(self) -> str:
        entries = [
            f"{name}: {len(members)} leaves in {_short(buffer)}" if shared else f"{name}: {_short(buffer)}"
            for name, members, shared, buffer in zip(
                self.layout.names, self.layout.members, self.layout.shared, self.buffers, strict=True
            )
        ]
        return f"Packed({', '.join(entries)})"

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Layout]:
        """For JAX: the buffers, with their names as keys."""
        keys = map(jax.tree_util.DictKey, self.layout.names)
        return list(zip(keys, self.buffers, strict=True)), self.layout

    def tree_flatten(self) -> tuple[tuple[Any, ...], Layout]:
        """For JAX: the buffers."""
        return self.buffers, self.layout

    @classmethod
    def tree_unflatten(cls, layout: Layout, buffers: Sequence[Any]) -> "Packed":
        """For JAX."""
        return cls(buffers, layout)


def _short(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") and hasattr(x, "shape") else repr(x)


def is_packed(x: Any) -> TypeGuard[Packed]:
    """Whether a node is a `Packed`: makes it a leaf."""
    return isinstance(x, Packed)


def holds_packed(tree: PyTree) -> bool:
    """Whether a tree is, or has within, a `Packed`."""
    return any(map(is_packed, jax.tree.leaves(tree, is_leaf=is_packed)))


# ---- leaves to buffers and back


def _split(buffer: Array, shapes: tuple[Shape, ...]) -> list[Array]:
    sizes = [math.prod(shape) for shape in shapes]
    if not (is_tracer(buffer) or tracing()):  # a program for all leaves would take seconds to compile
        starts = np.cumsum([0, *sizes], dtype=np.int32)
        return [cut(buffer, start, x) for start, x in zip(starts, shapes, strict=False)]
    pieces = split(buffer, sizes)
    return [lax.reshape(x, (*buffer.shape[:-1], *shape)) for x, shape in zip(pieces, shapes, strict=True)]


def _join(leaves: Sequence[Array], sharding: Any) -> Array:
    if any(map(is_tracer, leaves)) or tracing():
        return join([x.ravel() for x in leaves])
    buffer = jnp.zeros(sum(x.size for x in leaves), leaves[0].dtype, device=sharding)
    start = 0
    for x in leaves:
        buffer = filled(buffer, x, np.int32(start))
        start += x.size
    return buffer


def _leaves_of(packed: Packed) -> list[Any]:
    """The leaves in their order. What is no array, None say, stands for each leaf of its buffer."""
    layout = packed.layout
    leaves: list[Any] = [None] * len(layout.shapes)
    for buffer, members, shapes, shared, name in zip(
        packed.buffers, layout.members, layout.shapes_in, layout.shared, layout.names, strict=True
    ):
        if not shared:
            pieces = [buffer]
        elif not hasattr(buffer, "shape"):
            pieces = [buffer] * len(members)
        else:
            size = sum(map(math.prod, shapes))
            if buffer.shape[-1:] != (size,):
                raise ValueError(
                    f"What mirrors packed leaves has their buffer's length, {size}. Received: "
                    f"{_short(buffer)} for {name!r}. If a transformation that goes by whole parameters "
                    "made it, use packing.per_leaf(tx)."
                )
            if _is_float0(buffer):
                pieces = [np.zeros(shape, buffer.dtype) for shape in shapes]
            else:
                pieces = _split(buffer, shapes)
        for leaf, x in zip(members, pieces, strict=True):
            leaves[leaf] = x
    return leaves


def _filled(layout: Layout, leaves: Sequence[Any], shardings: Sequence[Any] | None = None) -> Packed:
    """Leaves, some of them None or sparse, in a layout; those of one buffer come to one dtype.

    None beside others in a buffer is -0.0, which changes no bit when added. Outside of traces buffers come
    to lie as `shardings` say, if given.
    """

    def buffer(members: Sequence[int], shared: bool, sharding: Any) -> Any:
        if not shared:
            leaf = leaves[members[0]]
            moves = sharding is not None and isinstance(leaf, jax.Array) and not tracing()
            return jax.device_put(leaf, sharding) if moves and leaf.sharding != sharding else leaf
        given = [leaves[i] for i in members]
        present = [x for x in given if x is not None]
        if not present:
            return None
        if _is_float0(present[0]):
            return np.zeros(sum(math.prod(layout.shapes[i]) for i in members), present[0].dtype)
        dtype = jnp.result_type(*{x.dtype for x in present})
        full = [
            jnp.full(layout.shapes[i], -0.0, dtype) if x is None else dense(x, layout.shapes[i]).astype(dtype)
            for i, x in zip(members, given, strict=True)
        ]
        return _join(full, sharding)

    at = shardings or [None] * len(layout.names)
    return Packed(list(map(buffer, layout.members, layout.shared, at)), layout)


def pack(params: Params, max_size: int | None = 2**14) -> Packed:
    """A tree as a `Packed`: leaves of up to `max_size` entries share a flat buffer each dtype.

    Larger leaves stay as they are, and so do those that are spread over devices, and a leaf that has its
    dtype to itself. Arrays that lie on different devices get buffers of their own. Elementwise
    transformations run on the buffers, and give the same bits as on the tree; those of this library that go
    by whole parameters run leaf by leaf, with the same arithmetic. A norm of all gradients sums in
    another order. For example::

        params = oc.packing.pack(params)
        state = tx.init(params)
        grads = jax.grad(lambda params: loss(oc.packing.unpack(params)))(params)

    Args:
      params: a pytree of arrays, with None and empty subtrees. A `Packed` within is unpacked first, so what
        is packed already is packed anew.
      max_size: the most entries of a leaf that shares a buffer; None: all leaves do.

    Returns:
      What holds large leaves as the very arrays that they are, and copies of the small ones. So where
      it is donated, large leaves of `params` go with it.

    Raises:
      TypeError: a leaf that is no array.
      ValueError: `max_size` is negative.
    """
    if max_size is not None and max_size < 0:
        raise ValueError(
            f"max_size must be a number of entries. Received: max_size={max_size}. Pass None for no limit."
        )
    flat, treedef = jax.tree_util.tree_flatten_with_path(unpack(params), is_leaf=is_sparse)
    for path, x in flat:
        if is_sparse(x):
            raise TypeError(
                "A tree to be packed has arrays for leaves. Received: IndexedSlices at "
                f"{jax.tree_util.keystr(path)!r}. Gradients are packed as their parameters are: "
                "pack_like(grads, params)."
            )
    leaves = [_as_leaf(x) for _, x in flat]
    traced = any(map(is_tracer, leaves))
    groups: dict[Any, list[int]] = {}
    for i, x in enumerate(leaves):
        small = (max_size is None or x.size <= max_size) and _joins(x)
        group = (x.dtype, None if traced else getattr(x, "sharding", None)) if small else i
        groups.setdefault(group, []).append(i)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") or "params" for path, _ in flat]
    places, names = [0] * len(leaves), []
    for place, members in enumerate(groups.values()):
        for i in members:
            places[i] = place
        name = paths[members[0]] if len(members) == 1 else str(leaves[members[0]].dtype)
        names.append(name if name not in names else f"{name} {place}")
    shared = tuple(len(members) > 1 for members in groups.values())
    layout = Layout(treedef, tuple(x.shape for x in leaves), tuple(places), tuple(names), shared)
    shardings = [getattr(leaves[members[0]], "sharding", None) for members in groups.values()]
    return _filled(layout, leaves, shardings)


def _as_leaf(x: Any) -> Any:
    return x if isinstance(x, jax.Array) or _is_float0(x) else jnp.asarray(x)


def _is_float0(x: Any) -> bool:
    """Whether an array is the gradient of integers: NumPy's, of a dtype that JAX does not calculate with."""
    return getattr(x, "dtype", None) == jax.dtypes.float0


def _joins(x: Array) -> bool:
    """Whether a leaf can lie in a flat buffer: a plain dtype, and not spread over devices."""
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return False
    if is_tracer(x):
        return not any(axis is not None for axis in jax.typeof(x).sharding.spec)
    return _is_float0(x) or x.sharding.is_fully_replicated


def unpack(tree: PyTree) -> PyTree:
    """The tree that a `Packed` holds; of any tree, an optimizer's state say, each `Packed` within replaced.

    So a state unpacks to that of the same optimizer on the unpacked parameters, under its names. The gradient
    of a function of what is unpacked comes packed, by one concatenation for each buffer: leaves are pieces
    of one split, which is linear and has that for its transpose. Higher derivatives, forward ones too,
    and `vmap` work through it. A buffer with axes in front of its own, as `vmap` and `scan` stack
    them, gives leaves with these axes.

    Raises:
      ValueError: an entry that is an array of another length than its buffer's.
    """
    return jax.tree.map(
        lambda x: x.layout.treedef.unflatten(_leaves_of(x)) if is_packed(x) else x, tree, is_leaf=is_packed
    )


def pack_like(tree: PyTree, like: PyTree) -> PyTree:
    """The inverse of `unpack`: a tree, or an optimizer's state, packed where `like` is. For example::

        state = oc.packing.pack_like(restored, tx.init(params))

    Args:
      tree: a tree of arrays. `IndexedSlices` of a leaf that shares a buffer become dense.
      like: the same tree with a `Packed` in some places; of arrays, or of shapes as from `jax.eval_shape`.

    Raises:
      ValueError: leaves that are missing, left over, or of another shape or dtype, by their paths.
    """
    tree = unpack(tree)
    entries, treedef = jax.tree.flatten(like, is_leaf=is_packed)
    specs = [x.layout.treedef.unflatten(_specs(x)) if is_packed(x) else x for x in entries]
    _check_fits(tree, treedef.unflatten(specs))
    packed = []
    for x, part in zip(entries, treedef.flatten_up_to(tree), strict=True):
        if is_packed(x):
            leaves = [y if is_leaf(y) else _as_leaf(y) for y in _flat_in(x.layout, part)]
            part = _filled(x.layout, leaves, [getattr(b, "sharding", None) for b in x.buffers])
        packed.append(part)
    return treedef.unflatten(packed)


def _flat_in(layout: Layout, tree: PyTree) -> list[Any]:
    return layout.treedef.flatten_up_to(tree)


def _specs(packed: Packed) -> list[Any]:
    """The leaves as shapes and dtypes."""
    specs: list[Any] = [None] * len(packed.layout.shapes)
    for buffer, members, shared in zip(
        packed.buffers, packed.layout.members, packed.layout.shared, strict=True
    ):
        for i in members:
            specs[i] = (
                jax.ShapeDtypeStruct(packed.layout.shapes[i], buffer.dtype)
                if shared and hasattr(buffer, "dtype")
                else buffer
            )
    return specs


def _check_fits(tree: PyTree, like: PyTree) -> None:
    def by_path(tree: PyTree) -> dict[str, Any]:
        flat = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_sparse)
        return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in flat}

    def kind(x: Any) -> Any:
        return (None if x.shape is None else tuple(x.shape), str(x.dtype)) if hasattr(x, "dtype") else None

    given, wanted = by_path(tree), by_path(like)
    wrong = [
        *(f"{path!r} is missing" for path in wanted if path not in given),
        *(f"{path!r} is left over" for path in given if path not in wanted),
    ]
    for path in wanted.keys() & given.keys():
        has, wants = kind(given[path]), kind(wanted[path])
        if has and wants and (has[1] != wants[1] or has[0] not in (None, wants[0])):
            wrong.append(f"{path!r} is {_short(given[path])} in the place of {_short(wanted[path])}")
    if wrong:
        raise ValueError(
            f"What is packed must have the leaves of `like`. Received: {'; '.join(wrong)}. "
            "Pass the tree that unpack gave, or another `like`."
        )


# ---- transformations


def per_leaf(tx: GradientTransformation) -> GradientTransformation:
    """`tx` on the leaves of what is packed: on a `Packed` it gives exactly the numbers it gives on the tree.

    Transformations of other libraries that go by whole parameters, by labels or by masks need it, as
    `per_leaf(optax.lamb(1e-3))`; this library's do it by themselves. `tx` sees unpacked trees, and its
    state is that of the unpacked parameters. Its updates come packed. Gradients may come unpacked, with
    None and `IndexedSlices`: the update of a leaf without a gradient is then -0.0, which changes no bit.
    Without a `Packed` this is `tx` itself.

    Args:
      tx: a transformation, from optax too.
    """

    def init(params: Params) -> OptState:
        return tx.init(unpack(params))

    @functools.wraps(tx.update)
    def update(
        updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, OptState]:
        like = next((x for x in (params, updates) if holds_packed(x)), None)
        if like is None:
            return tx.update(updates, state, params, **extra_args)
        new, state = tx.update(unpack(updates), state, unpack(params), **unpack(extra_args))
        return packed_as(new, like), state

    return GradientTransformation(init, update)


def packed_as(tree: PyTree, like: PyTree) -> PyTree:
    """A tree, some of its leaves None or sparse, packed where `like` is; dtypes are its own."""
    entries, treedef = jax.tree.flatten(like, is_leaf=lambda x: is_packed(x) or is_leaf(x))
    packed = [
        _filled(x.layout, _flat_in(x.layout, part)) if is_packed(x) else part
        for x, part in zip(entries, treedef.flatten_up_to(tree), strict=True)
    ]
    return treedef.unflatten(packed)


Mark = tuple[bool, ...]
"""Whether a leaf is kept; for a `Packed`, whether each of its leaves is, in their order."""


def kept_part(x: Any, mark: Mark) -> Any:
    """`x`, with None in the place of what is not kept."""
    if not is_packed(x):
        return x if mark[0] else None
    if all(mark):
        return x
    leaves = [leaf for leaf, keep in zip(_leaves_of(x), mark, strict=True) if keep]
    return _filled(_kept_layout(x.layout, mark), leaves)


def merged(new: Any, old: Any, mark: Mark) -> Any:
    """`old`, with `new` in the place of what is kept."""
    if not is_packed(old):
        return new if mark[0] else old
    if all(mark):
        return new
    changed = iter(_leaves_of(new))
    leaves = [next(changed) if keep else x for x, keep in zip(_leaves_of(old), mark, strict=True)]
    return _filled(old.layout, leaves)


@functools.lru_cache(maxsize=256)
def _kept_layout(layout: Layout, mark: tuple[bool, ...]) -> Layout:
    """The layout of the leaves that are kept, in the same buffers; a buffer with none of them goes."""
    tree = layout.treedef.unflatten([True if keep else None for keep in mark])
    where = [i for i, keep in enumerate(mark) if keep]
    used = sorted({layout.places[i] for i in where})
    return Layout(
        jax.tree.structure(tree),
        tuple(layout.shapes[i] for i in where),
        tuple(used.index(layout.places[i]) for i in where),
        tuple(layout.names[b] for b in used),
        tuple(layout.shared[b] for b in used),
    )


def spread(marks: Sequence[bool], tree: PyTree) -> list[Mark]:
    """Marks of the leaves of `unpack(tree)`, None and sparse ones too, as marks of the leaves of `tree`."""
    stream = iter(marks)
    out: list[Mark] = []
    for x in jax.tree.leaves(tree, is_leaf=is_packed_or_leaf):
        if is_packed(x):
            present = x.layout.treedef.unflatten([True] * len(x.layout.shapes))
            plain = jax.tree.leaves(present, is_leaf=is_leaf)
            out.append(tuple([m for y, m in zip(plain, stream, strict=False) if y is not None]))
        else:
            out.append((next(stream),))
    return out


def is_packed_or_leaf(x: Any) -> bool:
    """Whether a node is a `Packed` or a gradient of its own: makes it a leaf."""
    return is_packed(x) or is_leaf(x)
