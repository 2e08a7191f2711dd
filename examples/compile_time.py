"""How long compiling takes, and how much memory it needs in addition: `python examples/compile_time.py`.

Each run is a process of its own with one thread, so that imports and first calls count; medians of five.
"""

import statistics
import subprocess
import sys

RUN = """
import threading, time, torch, torchvision, lpcompile
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
lpcompile.parallelize(model, K=8, example_inputs=x, cost="flops")
print(time.perf_counter() - start, (peak - base) / size)
done = True
"""
runs = [subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True) for _ in range(5)]
seconds, memory = zip(*(map(float, r.stdout.split()) for r in runs), strict=True)
print(
    f"parallelize(resnet152, K=8, cost='flops'): median {statistics.median(seconds):.1f} s "
    f"({min(seconds):.1f} to {max(seconds):.1f}), {statistics.median(memory):.2f} of the parameters' memory"
)
