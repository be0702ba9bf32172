"""Accelerate with c-CoLA-ud on a spiral: no weight leaves [-3, 3]; gradients are accumulated over two batches.

Stop it and run it again: it goes on from its last checkpoint. `accelerate launch` runs it on several ranks.
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import tether

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "out/with_accelerate") / "state"

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(2, 100), torch.nn.ReLU(), torch.nn.Linear(100, 2))
opt = tether.methods.circle_cola_ud(model, lr=0.2, radius=3.0, friction=1.0, temperature=1e-5)
data = DataLoader(TensorDataset(*tether.data.spiral(n=500, turns=1)), batch_size=25, shuffle=True)
model, opt, data = accelerator.prepare(model, opt, data)

if FOLDER.exists():
    accelerator.load_state(str(FOLDER))
for _ in range(20):
    for x, y in data:
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.cross_entropy(model(x), y.long()))
            opt.step()
            opt.zero_grad()
    accelerator.save_state(str(FOLDER))

largest = max(float(p.detach().abs().max()) for p in model.parameters() if p.dim() > 1)
accelerator.print(f"step {opt.param_groups[0]['step']}, largest weight {largest:.2f}")
