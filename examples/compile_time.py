"""Time to compile, to derive AuxNets and to emit, and the additional memory of compiling.

    python examples/compile_time.py

Each run is a new process with one thread, so that first calls count; medians of five. Memory is read from
/proc (Linux).
"""

import statistics
import subprocess
import sys

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
runs = [subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True) for _ in range(5)]
seconds, memory, derive, emit = zip(*(map(float, r.stdout.split()) for r in runs), strict=True)


def median(values: tuple[float, ...]) -> str:
    return f"median {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


extra = f"{statistics.median(memory):.2f} of the parameters' memory"
print(f"stages of resnet152, K=8, cost='flops': {median(seconds)}, {extra}")
print(f"its seven AuxNets: {median(derive)}")
print(f"emit, weights included: {median(emit)}")
