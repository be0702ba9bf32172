"""
Feel it: change a temperature while it runs
===========================================

``tether explore`` opens a page in the browser that trains small networks by up to four dynamics side by side. Every
number can be changed while they run. In a notebook it is one line:

.. code-block:: python

   import tether

   tether.explore({"hidden": [40], "dynamics": [{"method": "sgd"}, {"method": "adlala"}]})

.. made: animation

What the page shows, and what it can do, is in :doc:`/explore`. Its button *Show me the code* prints a program that
makes what is on the screen. Here is what such a program does.
"""

# %%
# Langevin dynamics at a temperature, six networks at once. The kinetic temperature is the mean of :math:`p^2`: what the
# noise puts in and the friction takes out.

import matplotlib.pyplot as plt
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss

import tether

points = tether.data.spiral(500)
nets = tether.Replicas(lambda: nn.Sequential(nn.Linear(2, 40), nn.ReLU(), nn.Linear(40, 1)), n=6)
opt = tether.methods.langevin(nets, lr=0.1, friction=1.0, temperature=1e-3)


def read(step, nets, opt):
    """The kinetic temperature of each network."""
    return {"temperature": opt.temperature()["*"]}


# %%
# A field of the optimizer that is changed between two steps is obeyed at the next one: heat up, then cool down.

steps, readings, targets = [], [], []
for leg, temperature in enumerate((1e-3, 1e-2, 1e-4)):
    opt.param_groups[0]["temperature"] = temperature
    first, last = 300 * leg, 300 * (leg + 1)
    record = tether.train(nets, opt, points, loss, last, batch=50, first=first, log_every=10, callbacks=[read])
    steps += record.steps
    readings += record.metrics["temperature"].mean(1).tolist()
    targets += [temperature] * len(record.steps)
    settled = sum(readings[-15:]) / 15
    print(f"temperature {temperature:g}: the networks have {settled:.2g}, {settled / temperature:.2f} times as much")

# %%
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.semilogy(steps, readings, ".", label="kinetic temperature, mean of six networks")
ax.semilogy(steps, targets, "k--", lw=1, label="temperature that was set")
ax.set(xlabel="step")
ax.legend()
plt.show()

# %%
# At a low temperature the noise of the minibatches shows: it heats the networks a little more than was asked for.
