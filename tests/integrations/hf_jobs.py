"""Tiny models of transformers with random weights, and data for them."""

from __future__ import annotations

import torch
import transformers
from torch.utils.data import Dataset


class Texts(Dataset):
    """Token ids of different lengths, with the class or with themselves as labels."""

    def __init__(self, count=24, classes=None, seed=0, low=4, high=10):
        g = torch.Generator().manual_seed(seed)
        self.samples = []
        for _ in range(count):
            ids = torch.randint(3, 40, (int(torch.randint(low, high, (1,), generator=g)),), generator=g).tolist()
            label = {"labels": sum(ids) % classes} if classes else {}
            self.samples.append({"input_ids": ids, "attention_mask": [1] * len(ids), **label})

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


def pad(samples):
    """Pads to the longest of a batch, as DataCollatorWithPadding does."""
    longest = max(len(s["input_ids"]) for s in samples)
    ids = torch.tensor([s["input_ids"] + [0] * (longest - len(s["input_ids"])) for s in samples])
    mask = torch.tensor([s["attention_mask"] + [0] * (longest - len(s["attention_mask"])) for s in samples])
    if "labels" in samples[0]:
        labels = torch.tensor([s["labels"] for s in samples])
    else:
        labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=4, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32, num_labels=3,
        max_position_embeddings=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def accuracy(found):
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


def arguments(folder, **options):
    options = {"max_steps": 6, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "logging_steps": 2,
               "use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "seed": 1,
               **options}  # fmt: skip
    return transformers.TrainingArguments(str(folder), **options)


class Images(Dataset):
    def __init__(self, count=22, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.x, self.y = torch.randn(count, 3, 8, 8, generator=g), torch.randint(3, (count,), generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"pixel_values": self.x[i], "labels": self.y[i]}


def vit():
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=3, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


class Stop(transformers.TrainerCallback):
    """Ends training after three steps."""

    def on_step_end(self, args, state, control, **rest):
        control.should_training_stop = state.global_step >= 3


class Note(transformers.TrainerCallback):
    """Notes the losses."""

    def __init__(self):
        self.losses = []

    def on_log(self, args, state, control, logs=None, **rest):
        self.losses += [logs["loss"]] if "loss" in logs else []


def weighing(base):
    """A Trainer of a user's own, with an argument of its own and class weights."""

    class Weighing(base):
        def __init__(self, *args, weights, **options):
            super().__init__(*args, **options)
            self.weights = torch.tensor(weights)

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            found = model(**inputs)
            loss = torch.nn.functional.cross_entropy(found.logits, labels, weight=self.weights)
            return (loss, found) if return_outputs else loss

    return Weighing


class Echo(torch.nn.Module):
    """Gives back what it is given, while it is not trained."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[Layer() for _ in range(4)])

    def forward(self, pixel_values):
        return self.layers(pixel_values)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 3, 1)
        torch.nn.init.zeros_(self.conv.weight)
        torch.nn.init.zeros_(self.conv.bias)

    def forward(self, x):
        return x + self.conv(x)


def denoising(base):
    """A Trainer whose loss draws random numbers and looks at them."""

    class Denoising(base):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            x = inputs["pixel_values"]
            noise = torch.randn_like(x)
            return torch.nn.functional.mse_loss(model(pixel_values=x + noise) - noise, x)

    return Denoising


BEST = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 2,
        "load_best_model_at_end": True, "metric_for_best_model": "accuracy", "lr_scheduler_type": "cosine"}  # fmt: skip
# The model, arguments, and options of the Trainer.
CASES = {
    "gpt2": ("gpt2", {}, {}),
    "accumulated": ("gpt2", {"gradient_accumulation_steps": 2, "max_steps": 4, "max_grad_norm": 0.3}, {}),
    "best": ("bert", BEST, {}),
    "smoothed": ("bert", {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2, "num_train_epochs": 2,
                          "max_steps": -1, "train_sampling_strategy": "group_by_length"}, {}),
    "stopped": ("vit", {"num_train_epochs": 3, "max_steps": -1}, {"callbacks": [Stop()]}),
}  # fmt: skip


def made(kind, trainer, folder, options, rest, **ours):
    """A trainer for one of the cases."""
    data, test = {
        "gpt2": (Texts(), Texts(10, seed=1)),
        "bert": (Texts(classes=3), Texts(10, classes=3, seed=1)),
        "vit": (Images(), Images(10, seed=1)),
    }[kind]
    given = {"train_dataset": data, "eval_dataset": test, **rest}
    if kind != "vit":
        given["data_collator"] = pad
    if kind != "gpt2":
        given["compute_metrics"] = accuracy
    return trainer(globals()[kind](), arguments(folder, **options), **given, **ours)


def outcome(trainer):
    """The weights and the log of a run, without times and means that begin anew when a run goes on."""
    keep = ("loss", "grad_norm", "eval_loss", "eval_accuracy", "learning_rate", "step")
    shown = [{name: value for name, value in line.items() if name in keep} for line in trainer.state.log_history]
    return {n: t.cpu() for n, t in trainer.model.state_dict().items()}, shown


def on_ranks(folder, cases):
    """All cases, as rank of two."""
    from lpcompile.integrations.transformers import Trainer

    found = {}
    options = {"learning_rate": 0.0, "remove_unused_columns": False, "max_steps": 3, "logging_steps": 1}
    noisy = denoising(Trainer)(
        Echo(), arguments(f"{folder}/noisy", **options), K=2, cost="flops", train_dataset=Images()
    )
    noisy.train()
    found["noisy"] = [line["loss"] for line in noisy.state.log_history if "loss" in line]
    for name in cases:
        kind, options, rest = CASES[name]
        trainer = made(kind, Trainer, f"{folder}/{name}", options, rest, K=2, cost="flops")
        trainer.train()
        found[name] = outcome(trainer)
        if name == "best":
            again = made(kind, Trainer, f"{folder}/{name}", options, rest, K=2, cost="flops")
            again.train(resume_from_checkpoint=f"{folder}/{name}/checkpoint-4")
            found["resumed"] = outcome(again)
    return found
