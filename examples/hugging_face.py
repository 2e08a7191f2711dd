"""A model of transformers with its own loss, on two processes: validation, checkpoints, resume.

    python examples/hugging_face.py --save run/            # lpcompile's Trainer, in place of transformers.Trainer
    python examples/hugging_face.py --save run/ --loop fit       # the same model and data by program.fit

Run it again with more --epochs, and it goes on from the last checkpoint. The model is a small BERT with random weights;
one of yours is `AutoModelForSequenceClassification.from_pretrained(NAME)`.
"""

import argparse

import torch
import transformers
from torch.utils.data import DataLoader, Dataset

import lpcompile

LENGTH, WORDS = 16, 50


class Texts(Dataset):
    """Token ids; the class says which of two words is there more often."""

    def __init__(self, count: int, seed: int) -> None:
        draws = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(3, WORDS, (count, LENGTH), generator=draws)
        rare = torch.rand(count, LENGTH, generator=draws) < 0.4
        self.ids[rare] = torch.randint(1, 3, (int(rare.sum()),), generator=draws)
        self.labels = ((self.ids == 1).sum(1) > (self.ids == 2).sum(1)).long()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(LENGTH).long(), "labels": self.labels[i]}


def small_bert() -> torch.nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=LENGTH, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def accuracy(found: transformers.EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


def by_trainer(model: torch.nn.Module, train: Dataset, val: Dataset, args: argparse.Namespace) -> None:
    """Only the import and K=2 differ from a script with transformers' own Trainer."""
    from transformers.trainer_utils import get_last_checkpoint

    from lpcompile.integrations.transformers import Trainer

    arguments = transformers.TrainingArguments(
        args.save, num_train_epochs=args.epochs, per_device_train_batch_size=32, per_device_eval_batch_size=100,
        learning_rate=1e-3, use_cpu=True,
        eval_strategy="epoch", save_strategy="epoch", save_total_limit=2, load_best_model_at_end=True,
        metric_for_best_model="accuracy", logging_steps=10, report_to=[],
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, K=2, cost="flops", train_dataset=train, eval_dataset=val, compute_metrics=accuracy
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(args.save))
    for line in trainer.state.log_history:
        if "eval_accuracy" in line:
            print(f"epoch {line['epoch']:g}: loss {line['eval_loss']:.4f}, accuracy {line['eval_accuracy']:.3f}")


def by_fit(model: torch.nn.Module, train: Dataset, val: Dataset, args: argparse.Namespace) -> None:
    """With loss_fn=None the loss is the model's own; batches are dicts, with the labels in them."""
    loader = DataLoader(train, 32, shuffle=True)
    program = lpcompile.parallelize(model, K=2, example_inputs=next(iter(loader)), cost="flops")
    record = program.fit(
        None, loader, args.epochs, test=DataLoader(val, 100),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, 1e-3), save=args.save, resume=True,
        metrics={"recall": lambda logits, labels: (logits.argmax(1)[labels == 1] == 1).float().mean()},
    )  # fmt: skip
    print(record)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=["trainer", "fit"], default="trainer")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=3200)
    parser.add_argument("--save", default="hugging-face-run", help="folder for checkpoints")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = small_bert()
    train, val = Texts(args.samples, 0), Texts(400, 1)
    (by_trainer if args.loop == "trainer" else by_fit)(model, train, val, args)


if __name__ == "__main__":
    main()
