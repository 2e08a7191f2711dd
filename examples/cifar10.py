"""Train a ResNet in K stages, by the same script with and without torchrun.

    torchrun --nproc-per-node 2 examples/cifar10.py --data cifar10/
    python examples/cifar10.py -K 2                          # starts its two processes itself

--data is a folder with train/CLASS/*.png and test/CLASS/*.png; the default is scikit-learn's digits at 16 px. --method
takes any method name. `python -m lpcompile train` has more options than this page of code.
"""

import argparse
import os

import torch
import torch.nn.functional as F

import lpcompile
from lpcompile.training.data import loaders


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet110", choices=list(lpcompile.models.REGISTRY))
    parser.add_argument("--data", default="digits")
    parser.add_argument("-K", type=int, default=int(os.environ.get("WORLD_SIZE", "2")))
    parser.add_argument("--method", default="auto")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument(
        "--save", help="folder for checkpoints, one an epoch; a run that ended early goes on from there"
    )
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = lpcompile.models.REGISTRY[args.model].factory()
    size = 16 if args.data == "digits" else 32
    train, test, _ = loaders(args.data, channels=3, size=size, batch=args.batch)
    steps = args.epochs * len(train)

    x = next(iter(train))[0]
    program = lpcompile.parallelize(model, args.K, example_inputs=x, cost="flops", method=args.method)
    found = program.fit(
        F.cross_entropy,
        train,
        args.epochs,
        test=test,
        optimizer=lambda ps: torch.optim.SGD(ps, args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True),
        scheduler=lambda o: torch.optim.lr_scheduler.OneCycleLR(o, args.lr, steps + 1, cycle_momentum=False),
        save=args.save,
        save_every=len(train) if args.save else 0,
        resume=bool(args.save),
    )
    if os.environ.get("RANK", "0") == "0":
        print(f"test accuracy {found['test accuracy']:.4f}")


if __name__ == "__main__":
    main()
