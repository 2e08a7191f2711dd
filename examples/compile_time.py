"""Time to compile, to derive AuxNets and to emit, and the additional memory of compiling.

    python examples/compile_time.py
    python examples/compile_time.py --cpu                            # CPU seconds of some models; extras timm, hf, zoo
    python examples/compile_time.py --cpu timm:davit_small resnet18  # of these

Each run is a new process with one thread, so that first calls count; medians of five. Memory is read from
/proc (Linux). CPU seconds are those of `parallelize(model, 4, cost="flops")`, gate included, after a small model has
been compiled: that torch is imported and warm does not count. They depend little on what else the machine does.
"""

import statistics
import subprocess
import sys

CPU_MODELS = [
    "strangers:reformer_pytorch/lm",
    "strangers:monai/SwinUNETR",
    "timm:davit_small",
    "strangers:tab_transformer_pytorch/ft_transformer",
    "torchvision:resnet18",
    "torchvision:resnet50",
    "torchvision:resnet152",
    "vit_s16_96",
    "hf:gpt2",
]
CPU = """
import sys, time, warnings, torch, lpcompile
from lpcompile import sources, zoo
warnings.simplefilter("ignore")
torch.set_num_threads(1)
name = sys.argv[1]
def compiled(model, K, args, kwargs):
    try:
        lpcompile.parallelize(model, K, example_inputs=args, example_kwargs=kwargs, cost="flops")
    except lpcompile.errors.PlanError as error:
        lpcompile.parallelize(model, error.most, example_inputs=args, example_kwargs=kwargs, cost="flops")
if name.startswith("strangers:"):
    model, make_inputs = zoo.find(name).build()
    args, kwargs = make_inputs(4)
else:
    source = sources.load(name, batch=2)
    model, args, kwargs = source.model.train(), source.example_args, source.example_kwargs
compiled(lpcompile.models.resnet20(), 4, (torch.randn(4, 3, 32, 32),), {})
start = time.process_time()
compiled(model, 4, args, kwargs)
print(time.process_time() - start)
"""


def cpu_seconds(names: list[str]) -> None:
    for name in names:
        runs = []
        for _ in range(5):
            run = subprocess.run([sys.executable, "-c", CPU, name], capture_output=True, text=True)
            if run.returncode:
                print(f"{name}: {run.stderr.splitlines()[-1]}")
                break
            runs.append(float(run.stdout))
        else:
            print(f"{name}: {median(tuple(runs))} of CPU")


RUN = """
import tempfile, threading, time, torch, torchvision, lpcompile
torch.set_num_threads(1)
model, x = torchvision.models.resnet152(), torch.randn(2, 3, 224, 224)
size = sum(p.numel() * p.element_size() for p in model.parameters())
rss = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
base = peak = rss()
done = False
def watch():
    global peak
    while not done:
        peak = max(peak, rss())
        time.sleep(0.005)
threading.Thread(target=watch).start()
start = time.perf_counter()
program = lpcompile.parallelize(model, K=8, example_inputs=x, cost="flops", method="bp")
compiled, memory = time.perf_counter() - start, (peak - base) / size
done = True
from lpcompile.planning.auxiliary.auxnets import AuxOptions, make_auxnets
start = time.perf_counter()
made = make_auxnets(model, program.stages, {}, AuxOptions())
derived = time.perf_counter() - start
program = lpcompile.parallelize(model, K=8, example_inputs=x, cost="flops", gate=False)
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    program.emit(folder + "/program")
    print(compiled, memory, derived, time.perf_counter() - start)
"""


def whole() -> None:
    runs = [subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True) for _ in range(5)]
    seconds, memory, derive, emit = zip(*(map(float, r.stdout.split()) for r in runs), strict=True)
    extra = f"{statistics.median(memory):.2f} of the parameters' memory"
    print(f"stages of resnet152, K=8, cost='flops': {median(seconds)}, {extra}")
    print(f"its seven AuxNets: {median(derive)}")
    print(f"emit, weights included: {median(emit)}")


def median(values: tuple[float, ...]) -> str:
    return f"median {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    if "--cpu" in sys.argv:
        cpu_seconds(sys.argv[2:] or CPU_MODELS)
    else:
        whole()
