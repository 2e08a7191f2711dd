"""Records of a study with given accuracies, without any training."""

from __future__ import annotations

from lpcompile.study.config import PLAIN, Entry, RunSpec
from lpcompile.study.networks import NAMED


def spec(method=PLAIN, K=1, seed=0, model="resnet20", name=None, **options):
    entry = Entry(name or method, method, options)
    return RunSpec(NAMED[model], entry, K, seed, "digits", 16, 1280, 64, 2)


def record(accuracy, method=PLAIN, K=1, seed=0, model="resnet20", rho=None, said=(), name=None, **options):
    one = spec(method, K, seed, model, name, **options)
    found = {"key": one.key, "run": one.to_json(), "commit": "abc", "machine": "m", "torch": "2", "date": "d",
             "accuracy": accuracy, "loss": 1.0, "curve": [[1, accuracy - 10], [2, accuracy]], "said": list(said),
             "seconds": 3.0}  # fmt: skip
    if rho is not None:
        found["simulated"] = {"rho": rho, "memory": 2**20 * K, "sent": 1024, "late": 0.0}
    return found


def small_study():
    """Two seeds of plain training and of three methods at K = 2."""
    return [record(accuracy + seed, method, 1 if method == PLAIN else 2, seed, rho=rho) for seed in (0, 1)
            for method, accuracy, rho in ((PLAIN, 70.0, None), ("gpipe", 70.5, 1.4), ("stream", 69.8, 1.9),
                                          ("penalty", 60.0, 1.8))]  # fmt: skip
