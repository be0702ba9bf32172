"""Hugging Face's Trainer with o-CoLA-ud: a small BERT with orthogonal weights reads film reviews.

The data is SST-2, in the folder TETHER_DATA. Stop the run and start it again: it goes
on from its last checkpoint and ends at the same bits.
"""

import sys

import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint

import tether

FOLDER = sys.argv[1] if len(sys.argv) > 1 else "out/with_trainer"


def numbered(sentence, length=12, words=1000):
    """A phrase as numbers of its words: 0 is nothing, the others are hashes."""
    numbers = [1 + sum(map(ord, word)) % (words - 1) for word in sentence.split()[:length]]
    return torch.tensor(numbers + [0] * (length - len(numbers)))


phrases = [{"input_ids": numbered(x), "labels": y} for x, y in zip(*tether.data.sst2("dev"), strict=True)]
torch.manual_seed(0)
size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=1000, **size))

opt = tether.methods.orthogonal_cola_ud(model, lr=0.1, friction=1.0, temperature=1e-7, free=["*embeddings*"])
arguments = transformers.TrainingArguments(
    FOLDER, max_steps=40, save_steps=10, per_device_train_batch_size=16, use_cpu=True, disable_tqdm=True, report_to=[]
)
trainer = transformers.Trainer(model, arguments, train_dataset=phrases, optimizers=(opt, None))
trainer.train(resume_from_checkpoint=get_last_checkpoint(FOLDER))
print(f"step {trainer.state.global_step}, violation {opt.violation():.1e}")
