"""peft with orthogonal LoRA: the rows of every A stay orthonormal while B and the classifier move freely.

The data is SST-2, in the folder TETHER_DATA.
"""

import sys

import peft
import torch
import transformers

import tether

FOLDER = sys.argv[1] if len(sys.argv) > 1 else "out/with_peft"


def numbered(sentence, length=12, words=1000):
    """A phrase as numbers of its words: 0 is nothing, the others are hashes."""
    numbers = [1 + sum(map(ord, word)) % (words - 1) for word in sentence.split()[:length]]
    return numbers + [0] * (length - len(numbers))


sentences, y = tether.data.sst2("dev")
x = torch.tensor([numbered(sentence) for sentence in sentences])
torch.manual_seed(0)
size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
base = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=1000, **size))
model = peft.get_peft_model(base, peft.LoraConfig(r=8, target_modules=["query", "value"], task_type="SEQ_CLS"))

orthogonal = tether.Part("*lora_A*", on=tether.Orthogonal())
opt = tether.Optimizer(model, [orthogonal, tether.Part("*")], lr=0.1, word="BAOAB", friction=1.0, temperature=1e-7)
for _ in range(30):
    batch = torch.randint(len(x), (16,))
    opt.zero_grad()
    model(input_ids=x[batch], labels=y[batch]).loss.backward()
    opt.step()
model.save_pretrained(FOLDER)
print(f"{model.num_parameters(only_trainable=True)} weights trained, violation {opt.violation():.1e}")
