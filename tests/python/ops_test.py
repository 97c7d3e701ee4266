"""cyfa.ops under what PyTorch does to operators: Cyclic Flow Attention, the recurrences of the baselines, and a step of each.

Values, gradients and shapes are tested in tests/ops; here, that they are the same from Python and under every transformation.
"""

import copy
import json
import pickle
from typing import Callable, NamedTuple

import pytest
import torch
from cyfa import ops
from torch import Tensor

torch.set_num_threads(1)  # the shapes are small

B, T, H, K, V, M = 2, 5, 2, 8, 6, 8
TABLE = {entry["op"]: entry for entry in json.loads(torch.ops.cyfa.recurrence_table())}
NAMES = ["cyclic_flow", *TABLE]
every_op = pytest.mark.parametrize("name", NAMES)


class Case(NamedTuple):
    function: Callable
    inputs: dict[str, Tensor]  # by argument

    def leaves(self) -> dict[str, Tensor]:
        return {name: x.detach().clone().requires_grad_() for name, x in self.inputs.items()}


def draw(shape: str, name: str) -> Tensor:
    sizes = {"B": B, "T": T, "H": H, "K": K, "V": V}
    x = torch.rand([sizes[letter] for letter in shape])
    return -x if name.startswith("log") else x


def case(name: str) -> Case:
    torch.manual_seed(3)
    keys = torch.nn.functional.normalize(torch.randn(B, T, H, K), dim=-1)
    tokens = {"q": torch.randn(B, T, H, K), "k": keys, "v": torch.randn(B, T, H, V)}
    if name == "cyclic_flow":
        gates = {key: draw("BTH", key) for key in ("log_alpha", "delta", "beta")}
        return Case(ops.cyclic_flow, tokens | gates | {"readout": torch.randn(H, M - 1, M - 1)})
    own = {a["name"]: draw(a["shape"], a["name"]) for a in TABLE[name]["arguments"]}
    return Case(getattr(ops, name), tokens | own)


def flat(result) -> list[Tensor]:
    """The tensors of an op's result: o, and those of the final state."""
    o, state = result
    return [o, *([state] if isinstance(state, Tensor) else state)]


def step_case(name: str) -> tuple[Callable, dict[str, Tensor], list[Tensor]]:
    """A step, its inputs by argument, and the tensors of its state."""
    inputs = {key: x[:, 0] if x.dim() > 2 and x.shape[:2] == (B, T) else x for key, x in case(name).inputs.items()}
    if name == "cyclic_flow":
        state = ops.empty_state(B, H, K, V, M)
        inputs["readout_table"] = ops.readout_table(inputs.pop("readout"))
        return ops.cyclic_flow_step, inputs | {"state": state}, list(state)
    state = torch.zeros(B, H, K, V)
    return getattr(ops, name + "_step"), inputs | {"state": state}, [state]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


def gradients(function: Callable, leaves: dict[str, Tensor]) -> list[Tensor]:
    outputs = flat(function(**leaves))
    return torch.autograd.grad(sum((x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum() for x in outputs), list(leaves.values()))


@every_op
def test_opcheck(name):
    own = case(name)
    torch.library.opcheck(getattr(torch.ops.cyfa, name).default, tuple(own.leaves().values()))
    _, inputs, _ = step_case(name)
    state = inputs.pop("state")
    inputs = (*inputs.values(), *([state] if isinstance(state, Tensor) else state))
    torch.library.opcheck(getattr(torch.ops.cyfa, name + "_step").default, inputs)


def test_opcheck_of_states_packed_sequences_and_the_readout_table():
    own = {key: x.detach() for key, x in case("cyclic_flow").leaves().items()}
    one = {key: x[:1] if x.shape[:2] == (B, T) else x for key, x in own.items()}
    state = [x.requires_grad_() for x in (torch.randn(2, H, K, M), torch.randn(2, H, M, V), torch.rand(2, H, dtype=torch.float64))]
    options = dict(zip(("initial_k", "initial_v", "initial_clock"), state)) | {"cu_seqlens": torch.tensor([0, 2, 5])}
    options |= {"q_norm_weight": torch.rand(K, requires_grad=True), "k_norm_weight": torch.rand(K, requires_grad=True)}
    torch.library.opcheck(torch.ops.cyfa.cyclic_flow.default, tuple(one.values()), options)
    torch.library.opcheck(torch.ops.cyfa.cyclic_flow_readout_table.default, (own["readout"],))
    gated = [x.detach()[:1].requires_grad_() for x in case("scalar_gated_la").inputs.values()]
    options = {"initial_state": torch.randn(2, H, K, V, requires_grad=True), "cu_seqlens": torch.tensor([0, 2, 5])}
    torch.library.opcheck(torch.ops.cyfa.scalar_gated_la.default, tuple(gated), options)


@every_op
def test_compiled_ops_give_the_same_bits(name):
    torch._dynamo.reset()
    own = case(name)
    compiled = torch.compile(own.function, fullgraph=True, backend="aot_eager")
    assert equal(flat(compiled(**own.leaves())), flat(own.function(**own.inputs)))
    assert equal(gradients(compiled, own.leaves()), gradients(own.function, own.leaves()))

    step, inputs, state = step_case(name)
    before = copy.deepcopy(inputs)
    o = step(**inputs)
    with torch.no_grad():
        assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(**before), o)
    after = before["state"]
    assert equal([after] if isinstance(after, Tensor) else list(after), state), "the compiled step updates other states"


def test_inductor_and_lengths_that_change():
    torch._dynamo.reset()
    flow, gated = case("cyclic_flow"), case("scalar_gated_la")

    def both(leaves):
        o, state = flow.function(**leaves)
        return o.cos(), (*state, *gated.function(leaves["q"], leaves["k"], leaves["v"], leaves["log_alpha"]))

    compiled = torch.compile(both, fullgraph=True, dynamic=True)
    for tokens in (T, T - 1):
        leaves = {key: x[:, :tokens].detach().requires_grad_() if x.shape[:2] == (B, T) else x for key, x in flow.leaves().items()}
        for a, b in zip(gradients(lambda **x: compiled(x), leaves), gradients(lambda **x: both(x), leaves)):
            torch.testing.assert_close(a, b)


@every_op
def test_autocast_changes_nothing(name):
    own = case(name)
    step, inputs, _ = step_case(name)
    again = copy.deepcopy(inputs)
    plain, plain_gradients, o = flat(own.function(**own.inputs)), gradients(own.function, own.leaves()), step(**inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert equal(flat(own.function(**own.inputs)), plain)
        assert equal(gradients(own.function, own.leaves()), plain_gradients)
        assert torch.equal(step(**again), o)


@every_op
def test_no_grad_and_inference_mode(name):
    own = case(name)
    leaves = own.leaves()
    plain = [x.detach() for x in flat(own.function(**leaves))]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            outputs = flat(own.function(**leaves))
            step, inputs, state = step_case(name)
            o = step(**inputs)
            assert not o.requires_grad and any(x.any() for x in state)
        assert not any(x.requires_grad for x in outputs) and equal(outputs, plain)
    assert gradients(own.function, leaves)[0].isfinite().all()  # constants kept from inference mode would not be recorded


@every_op
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(name, reentrant):
    own = case(name)
    plain, leaves = gradients(own.function, own.leaves()), own.leaves()

    def through(*tensors):
        return tuple(flat(own.function(**dict(zip(leaves, tensors)))))

    outputs = torch.utils.checkpoint.checkpoint(through, *leaves.values(), use_reentrant=reentrant)
    sum((x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum() for x in outputs).backward()
    assert equal([x.grad for x in leaves.values()], plain)


@every_op
def test_transforms_of_torch_func_are_refused_in_words(name):
    own = case(name)
    others = {key: x for key, x in own.inputs.items() if key != "q"}
    o_of = lambda q: own.function(q=q, **others)[0]  # noqa: E731
    q = own.inputs["q"]
    step, inputs, _ = step_case(name)
    for transform in (
        lambda: torch.vmap(o_of)(q[None]),
        lambda: torch.func.grad(lambda q: o_of(q).sum())(q),
        lambda: torch.func.jvp(o_of, (q,), (q,)),
        lambda: torch.vmap(lambda x: step(**inputs | {"q": x}))(inputs["q"][None]),
    ):
        with pytest.raises(NotImplementedError, match=rf"cyfa\.ops\.{name}(_step)?: vmap and other transforms of torch.func"):
            transform()


@every_op
def test_second_derivatives_are_refused_in_words(name):
    own = case(name)
    leaves = own.leaves()
    o = own.function(**leaves)[0]
    upstream = torch.randn_like(o, requires_grad=True)
    first = torch.autograd.grad(o, list(leaves.values()), upstream, create_graph=True)
    for key, x in (leaves | {"upstream": upstream}).items():
        with pytest.raises(NotImplementedError, match=f"{name}: the second derivative is not implemented"):
            torch.autograd.grad(first[0].sum(), x, retain_graph=True, allow_unused=True)
            pytest.fail(f"the derivative by {key} is wrong without a warning")
    o_of = lambda q: own.function(**own.inputs | {"q": q})[0]  # noqa: E731
    for transform in (torch.autograd.functional.jvp, torch.autograd.functional.hvp):
        with pytest.raises(NotImplementedError, match="the second derivative is not implemented"):
            transform(lambda q: o_of(q).sum(), leaves["q"], leaves["q"].detach())


@every_op
def test_functions_and_states_copy_and_pickle(name):
    own = case(name)
    step, *_ = step_case(name)
    for function in (own.function, step):
        assert pickle.loads(pickle.dumps(function)) is function and copy.deepcopy(function) is function
    state = own.function(**own.inputs)[1]
    for again in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
        assert type(again) is type(state) and equal(flat((own.inputs["q"], again)), flat((own.inputs["q"], state)))


@every_op
def test_meta_tensors_have_the_shapes_and_types_of_real_ones(name):
    own = case(name)
    for real in (own.inputs, {key: x.bfloat16() for key, x in own.inputs.items()}):
        wanted = flat(own.function(**real))
        for x, y in zip(flat(own.function(**{key: x.to("meta") for key, x in real.items()})), wanted):
            assert x.is_meta and (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
    step, inputs, _ = step_case(name)
    o = step(**inputs)
    on_meta = {key: x.to("meta") if isinstance(x, Tensor) else type(x)(*(y.to("meta") for y in x)) for key, x in inputs.items()}
    x = step(**on_meta)
    assert x.is_meta and (x.shape, x.dtype) == (o.shape, o.dtype)


@every_op
def test_backends_are_named_with_their_refusals(name):
    own = case(name)
    offers = ops.cyclic_flow_backends(**own.inputs) if name == "cyclic_flow" else ops.recurrence_backends(name, **own.inputs)
    refusals = dict(offers)
    assert list(refusals) == ["sm90", "portable", "reference"]
    assert refusals["sm90"] and not refusals["portable"]
    with pytest.raises(ValueError, match="sm90"):
        own.function(**own.inputs, backend="sm90")
    auto = flat(own.function(**own.inputs))
    assert equal(flat(own.function(**own.inputs, backend="portable")), auto)
    for x, y in zip(flat(own.function(**own.inputs, backend="reference")), auto):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


Q = torch.zeros(B, T, H, K)


@pytest.mark.parametrize(
    "other, kind, message",
    [
        ({"q": Q[0]}, ValueError, r"q has shape \[5, 2, 8\], wanted \[B, T, H, K\]"),
        ({"q": Q.half()}, ValueError, "q has type Half, wanted Float, Double or BFloat16"),
        ({"k": Q.double()}, ValueError, r"k has type Double, wanted Float \(as q asks\)"),
        ({"k": Q[:, :2]}, ValueError, r"k has shape \[2, 2, 2, 8\], wanted"),
        ({"log_alpha": Q[..., 0] + 1}, ValueError, "log_alpha .* wanted"),
        ({"cu_seqlens": torch.tensor([0, 5])}, ValueError, "cu_seqlens"),
        ({"scale": float("nan")}, ValueError, "scale is nan, wanted"),
        ({"backend": "fast"}, ValueError, "backend is 'fast', wanted auto, reference, portable or sm90"),
        ({"q": [1.0]}, TypeError, r"Expected a value of type 'Tensor' for argument 'q' but instead found type 'list'\.$"),
        ({"backend": 3}, TypeError, "for argument 'backend' but instead found type 'int'"),
        ({"slots": 3}, TypeError, "slots"),
    ],
)
@pytest.mark.parametrize("name", ["cyclic_flow", "scalar_gated_la"])
def test_bad_inputs_raise_fitting_exceptions_in_words(name, other, kind, message):
    own = case(name)
    with pytest.raises(kind, match=message):
        own.function(**own.inputs | other)


def test_missing_arguments_and_states_that_do_not_fit_raise_fitting_exceptions():
    own = case("cyclic_flow")
    with pytest.raises(TypeError, match="readout"):
        ops.cyclic_flow(*list(own.inputs.values())[:6])
    with pytest.raises(TypeError, match="is missing value for argument 'log_alpha'"):
        ops.scalar_gated_la(Q, Q, Q)
    state = ops.empty_state(B + 1, H, K, V, M)
    with pytest.raises(ValueError, match="initial_state.k has shape"):
        ops.cyclic_flow(**own.inputs, initial_state=state)
    with pytest.raises(ValueError, match="the name is 'no_such', wanted one of la, "):
        ops.recurrence_backends("no_such", Q, Q, Q)
    step, inputs, _ = step_case("cyclic_flow")
    with pytest.raises(ValueError, match="cyclic_flow_step: state.k is a strided view, wanted a contiguous tensor"):
        step(**inputs | {"state": inputs["state"]._replace(k=inputs["state"].k.mT.contiguous().mT)})
    with pytest.raises(ValueError, match="readout_table: readout has shape"):
        ops.readout_table(Q)
