"""One of two processes of two devices each: trains what test_distribute.py compares, and saves it.

python two_processes.py ADDRESS PROCESS OUTPUT
"""

import os
import sys

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"

import jax
import numpy as np
import test_distribute as shared

import optax_compat as oc
from optax_compat import tf1

if __name__ == "__main__":
    address, process, output = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, process, initialization_timeout=60, heartbeat_timeout_seconds=10)
    with jax.enable_x64(True):
        model = shared.Model(towers=False)
        strategy = oc.distribute.MirroredStrategy()
        step = jax.jit(lambda *batch: strategy.reduce("mean", strategy.run(model.train, *batch)))
        half = slice(process * 4, process * 4 + 4)
        losses = shared.trajectory(lambda *batch: step(*strategy.shard([x[half] for x in batch])))

        opt, v = tf1.MomentumOptimizer(0.1, 0.9), oc.Variable(shared.W, name="w")
        opt.shard_slots(strategy.mesh)
        opt.apply_gradients([(shared.W, v)])
        (slot,) = shared.slots_of(opt)
        assert [x.data.shape for x in slot.value.addressable_shards] == [(3, 2), (3, 2)]
        np.savez(output, losses=losses, slot=opt.state_dict()[slot.name], **model.state())
