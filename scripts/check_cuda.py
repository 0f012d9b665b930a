"""Reads ptxas' reports on kernels from stdin and prints a table of registers, shared memory and spills. The exit code
is 1 if registers spill.

Called by check_cuda.sh, which writes a line `architecture NAME` before the report for each architecture.
"""
import re
import subprocess
import sys

REGISTERS, MOST_THREADS = 65536, 2048  # registers and threads of a multiprocessor
THREADS = 128  # threads of a block (kernels/cuda/attention_tables.h), except for the kernels in MORE_THREADS
MORE_THREADS = {"draw_token": 512, "choose": 512}  # kernels/cuda/device_sampler.cu, sparse_attention.cu


def short_name(mangled):
    name = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.strip()
    match = re.search(r"(\w+?)_kernel(<[\d, ]*>)?\(", name)
    return match[1] + (match[2] or "") if match else name


def main():
    rows = {}
    architecture = kernel = None
    for line in sys.stdin:
        if match := re.match(r"architecture (\S+)", line):
            architecture = match[1]
        elif match := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = short_name(match[1])
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(match[1]) + int(match[2])
        elif match := re.search(r"Used (\d+) registers", line):
            registers = int(match[1])
            shared = re.search(r"(\d+) bytes smem", line)
            rows.setdefault(kernel, {})[architecture] = (registers, int(shared[1]) if shared else 0, spilled)
    if not rows:
        sys.exit("error: ptxas reported no kernel")
    architectures = sorted({name for row in rows.values() for name in row}, key=lambda name: int(re.sub(r"\D", "", name)))
    print("Registers of a thread / blocks of 128 threads (`choose`, `draw_token`: 512) that they allow on a multiprocessor; static shared")
    print("memory and spills, where there are any, in bytes.\n")
    print("| kernel | " + " | ".join(architectures) + " |")
    print("|---" * (len(architectures) + 1) + "|")
    spills = []
    for kernel, row in sorted(rows.items()):
        cells = []
        for name in architectures:
            registers, shared, spilled = row[name]
            threads = min(REGISTERS // (-(-registers // 8) * 8), MOST_THREADS)  # registers are allocated in units of 8
            blocks = threads // MORE_THREADS.get(kernel, THREADS)
            cell = f"{registers} / {blocks}"
            if shared:
                cell += f", {shared} shared"
            if spilled:
                cell += f", {spilled} spilled"
                spills.append(f"{kernel} on {name}")
            cells.append(cell)
        print(f"| `{kernel}` | " + " | ".join(cells) + " |")
    if spills:
        sys.exit("error: registers spill to memory: " + ", ".join(spills))


if __name__ == "__main__":
    main()
