"""Training on many devices: towers, and replicas over a mesh, of one process or of many."""

from optax_compat.distribute.strategy import MirroredStrategy
from optax_compat.distribute.towers import replicate_towers

__all__ = ["MirroredStrategy", "replicate_towers"]
