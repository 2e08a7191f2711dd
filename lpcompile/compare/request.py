"""Options of a comparison, and what can be refused before it starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lpcompile import sources
from lpcompile.compile import parallelize
from lpcompile.errors import UsageError
from lpcompile.runtime.launch import launch
from lpcompile.runtime.methods import METHODS
from lpcompile.runtime.methods.recipe import recipe_of
from lpcompile.training.build import image_shape
from lpcompile.training.data import loaders
from lpcompile.training.job import Job


@dataclass(frozen=True)
class CompareRequest:
    """Options of a comparison. target: the accuracy to reach; None: DEFAULT_TARGET_SHARE of plain training's."""

    model: str
    K: int = 2
    methods: tuple[str, ...] = tuple(METHODS)
    data: str = "digits"
    epochs: int = 4
    batch: int = 64
    lr: float = 0.1
    optimizer: str = "sgd"
    target: float | None = None
    micro: int | None = None
    seed: int = 0
    size: int | None = None
    input: str | None = None
    init: str | None = None
    auxnet: str | None = None
    cost: str = "measured"
    timeout: float = launch.TIMEOUT

    def job(self, method: str) -> Job:
        options = {} if self.micro is None else {"micro": self.micro}
        return Job(self.model, self.data, self.K, method=method, epochs=self.epochs, batch=self.batch, lr=self.lr,
                   optimizer=self.optimizer, init=self.init, auxnet=self.auxnet, cost=self.cost, size=self.size,
                   input=self.input, seed=self.seed, timeout=self.timeout, options=options)  # fmt: skip

    def check(self) -> None:
        """Refuse wrong options before any process is started."""
        for method in self.methods:
            recipe_of(method)
        if not self.methods:
            raise UsageError(f"--methods names none; there are {', '.join(METHODS)}")
        if self.K < 2:
            raise UsageError(f"-K {self.K}: a comparison needs 2 stages or more; plain training is always beside them")
        if self.micro is not None and (self.micro < 1 or self.batch % self.micro):
            parts = ", ".join(str(m) for m in range(1, min(self.batch, 32) + 1) if self.batch % m == 0)
            raise UsageError(f"--micro {self.micro} does not divide --batch {self.batch}; it has {parts} equal parts")
        if self.target is not None and not 0 < self.target <= 1:
            raise UsageError(f"--target {self.target:g} is no share of right answers: give 0.9 for 90 %")
        self.job("bp").check()
        if launch.torchrun_rank() is not None:
            raise UsageError("compare starts its own processes, K for each method in turn: run it without torchrun")
        check_model(self)


def check_model(request: CompareRequest) -> None:
    """Refuse a model that cannot be cut into K stages or does not fit the data; needs its graph, not its weights."""
    source = sources.load(request.model, batch=request.batch, input_shape=request.input, device="meta")
    shapes = [tuple(t.shape) for t in source.example_args if isinstance(t, torch.Tensor)]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise UsageError(f"compare is for models of one image, and {request.model} takes {shapes}")
    channels, size = image_shape(source, request.job(request.methods[0]))
    _, test, _ = loaders(request.data, channels=channels, size=size, batch=request.batch, seed=request.seed)
    if test is None:
        raise UsageError(f"--data {request.data} has no test images to compare by; put some into test/CLASS/...")
    x = torch.empty(request.batch, channels, size, size, device="meta")
    parallelize(source.model, request.K, example_inputs=x, cost="flops", method="bp", gate=False)
