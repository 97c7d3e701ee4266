"""How the package behaves as a guest in a Python process: import, cost of a call, threads, signals, exceptions, documentation and types."""

import importlib
import inspect
import json
import os
import pathlib
import pkgutil
import signal
import subprocess
import sys
import threading
import time

import cyfa
import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = {"model_type": "cyclic_flow_attention", "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16, "num_slots": 16,
         "vocab_size": 64, "intermediate_size": 64}  # fmt: skip


def operands(T: int, H: int = 2, D: int = 64, m: int = 63):
    torch.manual_seed(1)
    gates = -torch.rand(1, T, H), torch.rand(1, T, H), torch.rand(1, T, H)
    return *(torch.randn(1, T, H, D) for _ in range(3)), *gates, torch.eye(m).repeat(H, 1, 1)


def test_import_takes_less_than_300_ms_on_top_of_torch():
    program = "import time, torch; begin = time.process_time(); import cyfa, cyfa.compat.fla; print(time.process_time() - begin)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(result.stdout) < 0.3


def test_import_does_not_bring_optional_packages():
    optional = ("transformers", "lm_eval", "triton", "fla")
    program = f"import sys, cyfa, cyfa.compat.fla; print([name for name in {optional} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_call_through_python_costs_at_most_30_us_more_than_from_cpp():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(5):  # load on the machine only adds
        result = subprocess.run([sys.executable, ROOT / "bench/compare_python_call.py"], env=environment, capture_output=True, text=True)
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        assert [row["op"] for row in rows] == ["cyclic_flow", "cyclic_flow_step", "scalar_gated_la", "scalar_gated_la_step"], result.stderr
        if result.returncode == 0:
            break
    assert result.returncode == 0, rows


def counted_during(call) -> int:
    """How far another thread counts while `call` runs."""
    count, running, begun = 0, True, threading.Event()

    def run():
        nonlocal count
        begun.set()
        while running:
            count += 1
            time.sleep(1e-4)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    try:
        before = count
        call()
        return count - before
    finally:
        running = False
        thread.join()


def test_long_calls_release_the_interpreters_lock():
    q, *others = (x.requires_grad_() for x in operands(6000))
    o = cyfa.ops.cyclic_flow(q, *others)[0]
    model = cyfa.nn.CausalLM(SMALL, seed=1)
    ids = torch.randint(64, (1, 6000))
    block = model.blocks[0]
    x = torch.randn(1, 6000, 32)
    decoding = cyfa.engine.StepEngine(model).begin(512)
    for name, call in {
        "forward": lambda: cyfa.ops.cyclic_flow(q, *others),
        "backward": lambda: o.sum().backward(),
        "block": lambda: block(x),
        "loss": lambda: model(ids, ids).loss,
        "step": lambda: [decoding.step(ids[0, :512]) for _ in range(10)],
    }.items():
        begin = time.perf_counter()
        count = counted_during(call)
        assert count > 0 or time.perf_counter() - begin < 0.02, name  # another thread waits 5 ms for its turn, on a busy machine longer


def test_threads_that_share_ops_and_models_get_the_bits_of_one_thread():
    model = cyfa.nn.CausalLM(SMALL, seed=1).eval()
    engine = cyfa.engine.StepEngine(model)
    ids = torch.randint(64, (4, 40), generator=torch.Generator().manual_seed(2))
    inputs = operands(40, D=16, m=15)

    def work(n: int) -> list[torch.Tensor]:
        own = ids[n : n + 1]
        leaves = [x.clone().requires_grad_() for x in inputs]
        o = cyfa.ops.cyclic_flow(*leaves)[0]
        results = [o.detach(), *torch.autograd.grad(o.square().sum(), leaves)]
        decoding = engine.begin(1)
        with torch.no_grad():
            results += [model(own).logits, *(decoding.step(own[:, t]).clone() for t in range(8))]
        fresh = cyfa.nn.CausalLM(SMALL | {"initializer_range": 0.01 * (n + 1)}, seed=n)  # a config that no other thread has
        return [*results, *torch.autograd.grad(fresh(own, own).loss, list(fresh.parameters()))]

    alone = [work(n) for n in range(4)]
    found: dict[int, list[torch.Tensor]] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: [work(n) for _ in range(4)][-1]})) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        assert len(found[n]) == len(alone[n]) and all(torch.equal(a, b) for a, b in zip(found[n], alone[n])), n


def test_ctrl_c_ends_a_loop_of_calls():
    program = (
        "import torch, cyfa\n"
        f"model = cyfa.nn.CausalLM({SMALL!r}, seed=1)\n"
        "ids = torch.zeros(1, 64, dtype=torch.long)\n"
        "print('begun', flush=True)\n"
        "try:\n"
        "    while True: model(ids, ids).loss.backward()\n"
        "except KeyboardInterrupt:\n"
        "    print(float(model(ids, ids).loss) > 0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("True\n", 0)


def test_ctrl_c_ends_a_command():
    """python -m cyfa runs outside of the interpreter, so the signal ends it at once, as it ends the executable."""
    command = [sys.executable, "-m", "cyfa", "bench", "op", "--op", "cyclic_flow", "--T", "2048", "--repeats", "100000"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        maps = pathlib.Path(f"/proc/{process.pid}/maps")
        while process.poll() is None and "libcyfa_python" not in maps.read_text():
            time.sleep(0.05)
        time.sleep(1)
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130) and "Traceback" not in error, (process.returncode, error)


MODEL = {"hf", "lm_eval"}  # need optional packages


def modules():
    yield cyfa
    for found in pkgutil.walk_packages(cyfa.__path__, "cyfa."):
        if found.name.split(".")[-1].startswith("_") and not found.name.endswith("__main__"):
            continue
        if found.name.split(".")[1] in MODEL:
            pytest.importorskip("transformers")
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def public_members():
    """(name, object) of every public function, class, method and property of the package."""
    for module in modules():
        for name, member in vars(module).items():
            if name.startswith("_") or not (inspect.isclass(member) or inspect.isfunction(member)):
                continue
            if member.__module__ != module.__name__:
                continue
            yield f"{module.__name__}.{name}", member
            for key, own in vars(member).items() if inspect.isclass(member) else ():
                if not key.startswith("_") and (inspect.isfunction(own) or isinstance(own, (property, classmethod, staticmethod))):
                    yield f"{module.__name__}.{name}.{key}", own


def test_everything_public_is_documented():
    members = dict(public_members())
    assert {"cyfa.ops.delta_rule", "cyfa.nn.CausalLM.forward", "cyfa.compat.fla.ops.chunk_cyfa", "cyfa.engine.StepEngine"} <= members.keys()
    undocumented = [name for name, member in members.items() if not inspect.getdoc(member)]  # an override has its base's
    assert not undocumented


def test_functions_of_tensors_state_their_shapes():
    for name in cyfa.ops.__all__:
        function = getattr(cyfa.ops, name)
        if inspect.isfunction(function) and "backends" not in name:
            assert "[" in function.__doc__, name
            assert all(p.annotation is not p.empty for p in inspect.signature(function).parameters.values()), name


def test_types_are_shipped_and_check():
    assert (pathlib.Path(cyfa.__file__).parent / "py.typed").is_file()
    pytest.importorskip("mypy", reason="mypy is not installed: the types of python/cyfa are not checked")
    result = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
